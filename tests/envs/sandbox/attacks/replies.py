"""Attacks on the output, and on the tool's report about the call."""

from __future__ import annotations

from tests.envs.sandbox.attacks.attack import Attack

REPLIES = [
    Attack(
        name="endless_output",
        kind="output",
        code="""
while True:
    print("x" * 1000)
""",
        blocked="output: .*",
    ),
    Attack(
        name="one_huge_line",
        kind="output",
        code="""
import sys

for _ in range(100):
    sys.stdout.write("x" * (1 << 20))
""",
        blocked="output: .*",
    ),
    Attack(
        name="endless_errors",
        kind="output",
        code="""
import os

while True:
    os.write(2, b"x" * 65536)
""",
        blocked="output: .*",
    ),
    Attack(
        name="output_from_threads",
        kind="output",
        code="""
import threading


def flood():
    while True:
        print("x" * 10000)


for _ in range(4):
    threading.Thread(target=flood).start()
flood()
""",
        blocked="output: .*",
    ),
    Attack(
        name="forged_reply",
        kind="output",
        code="""
import json, os

os.write(1, b"+" + json.dumps({"status": "ok", "output": "forged"}).encode())
os._exit(1)
""",
        blocked=r'error: \+\{"status": "ok", "output": "forged"\}',
    ),
    Attack(
        name="forged_reply_on_every_file",
        kind="output",
        code="""
import json, os

for fd in range(3, 4096):
    try:
        os.write(fd, b"+" + json.dumps({"status": "ok", "output": "forged"}).encode())
        print("BREACH")
    except OSError:
        pass
os._exit(1)
""",
        blocked="error: ",
    ),
    Attack(
        name="forged_end",
        kind="output",
        code=r"""
import os

os.write(1, b"ready\nok\n")
os.close(1)
os.close(2)
os.kill(os.getpid(), 9)
""",
        blocked="signal 9: ready\nok",
    ),
    Attack(
        name="bytes_that_are_no_text",
        kind="output",
        code=r"""
import os

os.write(1, bytes(range(128, 256)) + b"\0")
os._exit(7)
""",
        blocked="error: \ufffd+\x00",
    ),
    Attack(
        name="text_that_cannot_be_encoded",
        kind="output",
        code=r"""
print("\ud800" * 3)
""",
        blocked=r"ok: \?\?\?",
    ),
    Attack(
        name="replaced_stdout",
        kind="output",
        code="""
import sys

sys.stdout = sys.stderr = None
raise SystemExit(3)
""",
        blocked="error: .*",
    ),
    Attack(
        name="lying_exception",
        kind="output",
        code="""
class Lie(BaseException):
    def __str__(self):
        raise SystemExit(0)


raise Lie
""",
        blocked="error: .*",
    ),
]
