"""Attacks on time, memory, disk and the size of the output."""

from tests.envs.sandbox.attacks.attack import Attack, raises


def _endless(name: str, code: str) -> Attack:
    return Attack(name, code, "timeout: .*", time_limit_s=0.7)


def _fills(name: str, code: str, control: bool = False) -> Attack:
    """`code` writes until it cannot, and counts the bytes in `written`: more than 64 MB are a breach."""
    code = f"import os\nwritten, held = 0, []\ntry:\n{code}\nexcept OSError:\n    pass\n"
    return Attack(name, code + 'print("BREACH" if written > 64 << 20 else "blocked")', "ok: blocked", control=control)


LIMITS = [
    _endless(
        "swallows_exceptions_and_signals",
        """
import signal

for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
    signal.signal(number, signal.SIG_IGN)
while True:
    try:
        while True:
            pass
    except BaseException:
        pass
""",
    ),
    _endless("closes_its_output_and_sleeps", "import os, time; os.closerange(0, 64); time.sleep(10**6)"),
    _endless(
        "busy_threads",
        """
import threading


def busy():
    while True:
        pass


for _ in range(8):
    threading.Thread(target=busy).start()
busy()
""",
    ),
    _endless("stops_itself", "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)"),
    raises("many_small_objects", "x = [bytearray(1 << 20) for _ in range(3000)]", "MemoryError"),
    _fills(
        "buffers_of_sockets",
        """
    import contextlib, socket
    with contextlib.suppress(OSError):
        while True:
            held += socket.socketpair()
    for one in held:
        one.setblocking(False)
        with contextlib.suppress(OSError):
            one.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 30)
        with contextlib.suppress(OSError):
            while True:
                written += one.send(bytes(1 << 16))
""",
    ),
    raises("shared_mapping", "import mmap; x = mmap.mmap(-1, 4 << 30)", r"OSError: \[Errno 12\]"),
    Attack(
        name="deep_recursion",
        code="""
import sys

sys.setrecursionlimit(10**9)


def deeper():
    return deeper() + 1


deeper()
""",
        blocked="(signal 11|error|timeout): .*",
        time_limit_s=2.0,
    ),
    Attack(
        name="full_pipes",
        code="""
import fcntl, os

held, total = [], 0
try:
    while True:
        ends = os.pipe()
        held.append(ends)
        fcntl.fcntl(ends[1], 1031, 1 << 20)
        os.set_blocking(ends[1], False)
        total += os.write(ends[1], bytes(1 << 20))
except OSError as error:
    for ends in held[:2]:
        os.close(ends[0])
print("BREACH" if total > 128 << 20 else "blocked")
""",
        blocked="ok: blocked",
    ),
    Attack(
        name="thread_bomb",
        code="""
import threading, time

threading.stack_size(1 << 16)
started = 0
try:
    while started < 1000:
        threading.Thread(target=time.sleep, args=(3,), daemon=True).start()
        started += 1
except RuntimeError:
    pass
print("BREACH" if started > 40 else f"{started} threads")
""",
        blocked=r"ok: 3\d threads",
    ),
    _fills(
        "many_files_together",
        """
    for number in range(50):
        held.append(open(f"x{number}", "wb", buffering=0))
        written += held[-1].write(bytes(4 << 20))
""",
        control=True,
    ),
    _fills(
        "shared_memory_beside_files",
        """
    for number in range(20):
        for path in (f"/tmp/x{number}", f"/dev/shm/y{number}"):
            held.append(open(path, "wb", buffering=0))
            written += held[-1].write(bytes(8 << 20))
""",
    ),
    _fills(
        "very_many_files",
        """
    for number in range(20000):
        open(f"x{number}", "w").close()
        written += (number > 5000) * (1 << 30)
""",
    ),
    raises("sparse_file", 'open("x", "wb").truncate(1 << 40)', r"OSError: \[Errno 27\]"),
    Attack("one_huge_line", 'import sys; [sys.stdout.write("x" * (1 << 20)) for _ in range(100)]', "output: .*"),
    Attack("endless_errors", 'import os\nwhile True:\n    os.write(2, b"x" * 65536)', "output: .*"),
]
