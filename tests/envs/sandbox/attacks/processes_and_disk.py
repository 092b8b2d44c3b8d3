"""Attacks on processes and disk."""

from __future__ import annotations

from tests.envs.sandbox.attacks.attack import Attack

PROCESSES_AND_DISK = [
    Attack(
        name="fork_and_leave",
        kind="processes",
        code="""
import os, time

if os.fork() == 0:
    os.setsid()
    time.sleep(1000)
print("BREACH")
""",
        blocked=r"error: .*(PermissionError|OSError: \[Errno 1\]).*",
    ),
    Attack(
        name="subprocess",
        kind="processes",
        code="""
import subprocess, sys

subprocess.run([sys.executable, "-c", "pass"])
print("BREACH")
""",
        blocked=r"error: .*(PermissionError|OSError: \[Errno 1\]).*",
        control=True,
    ),
    Attack(
        name="posix_spawn",
        kind="processes",
        code="""
import os, sys

os.posix_spawn(sys.executable, ["python", "-c", "pass"], {})
print("BREACH")
""",
        blocked=r"error: .*(PermissionError|OSError: \[Errno 1\]).*",
        control=True,
    ),
    Attack(
        name="another_program",
        kind="processes",
        code="""
import os, sys

os.execv(sys.executable, ["python", "-c", 'print("BREACH")'])
""",
        blocked=r"error: .*(PermissionError|OSError: \[Errno 1\]).*",
        control=True,
    ),
    Attack(
        name="raw_clone_and_vfork",
        kind="processes",
        code="""
import ctypes, os

libc = ctypes.CDLL(None, use_errno=True)
numbers = {"x86_64": (56, 57, 58, 435), "aarch64": (220, 435)}[os.uname().machine]
for number in numbers:
    pid = libc.syscall(number, 17, 0, 0, 0, 0)
    if pid == 0:
        os._exit(0)
    if pid > 0:
        print("BREACH")
print("blocked")
""",
        blocked="ok: blocked",
    ),
    Attack(
        name="thread_bomb",
        kind="processes",
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
    Attack(
        name="raises_its_process_limit",
        kind="processes",
        code="""
import resource

resource.setrlimit(resource.RLIMIT_NPROC, (10**5, 10**5))
print("BREACH")
""",
        blocked="error: .*ValueError: not allowed to raise maximum limit.*",
    ),
    Attack(
        name="one_large_file",
        kind="disk",
        code="""
written = 0
with open("x", "wb", buffering=0) as file:
    try:
        while written < 200 << 20:
            written += file.write(bytes(1 << 20))
    except OSError:
        pass
print("BREACH" if written > 64 << 20 else "blocked")
""",
        blocked="ok: blocked",
    ),
    Attack(
        name="many_files_together",
        kind="disk",
        code="""
written = number = 0
try:
    while written < 200 << 20:
        with open(f"x{number}", "wb", buffering=0) as file:
            written += file.write(bytes(4 << 20))
        number += 1
except OSError:
    pass
print("BREACH" if written > 64 << 20 else "blocked")
""",
        blocked="ok: blocked",
        control=True,
    ),
    Attack(
        name="deleted_but_open_files",
        kind="disk",
        code="""
import os

held, written = [], 0
try:
    while len(held) < 60:
        held.append(open("x", "wb", buffering=0))
        os.unlink("x")
        written += held[-1].write(bytes(8 << 20))
except OSError:
    pass
print("BREACH" if written > 64 << 20 else "blocked")
""",
        blocked="ok: blocked",
    ),
    Attack(
        name="shared_memory_beside_files",
        kind="disk",
        code="""
written = 0
for folder in ("/tmp", "/dev/shm"):
    try:
        for number in range(20):
            with open(f"{folder}/x{number}{folder[1]}", "wb", buffering=0) as file:
                written += file.write(bytes(8 << 20))
    except OSError:
        pass
print("BREACH" if written > 64 << 20 else "blocked")
""",
        blocked="ok: blocked",
    ),
    Attack(
        name="sparse_file",
        kind="disk",
        code="""
with open("x", "wb") as file:
    file.truncate(1 << 40)
print("BREACH")
""",
        blocked=r"error: .*OSError: \[Errno 27\].*",
    ),
    Attack(
        name="reserved_space",
        kind="disk",
        code="""
import os

with open("x", "wb") as file:
    os.posix_fallocate(file.fileno(), 0, 10 << 30)
print("BREACH")
""",
        blocked=r"error: .*OSError: \[Errno (27|28)\].*",
    ),
    Attack(
        name="mapped_sparse_file",
        kind="disk",
        code="""
import mmap

with open("a", "w+b") as one, open("b", "w+b") as two:
    maps = []
    for file in (one, two):
        file.truncate(60 << 20)
        maps.append(mmap.mmap(file.fileno(), 60 << 20))
    for view in maps:
        for position in range(0, 60 << 20, 4096):
            view[position] = 1
print("BREACH")
""",
        blocked="signal 7: .*",
    ),
    Attack(
        name="very_many_files",
        kind="disk",
        code="""
made = 0
try:
    while made < 20000:
        open(f"x{made}", "w").close()
        made += 1
except OSError:
    pass
print("BREACH" if made > 5000 else "blocked")
""",
        blocked="ok: blocked",
    ),
]
