"""Attacks by processes and files that survive a call."""

from __future__ import annotations

from tests.envs.sandbox.attacks.attack import Attack

SURVIVORS = [
    Attack(
        name="pins_and_starves_the_supervisor",
        kind="survivors",
        code="""
import os, resource

done = []
for attempt in (
    lambda: os.sched_setaffinity(1, {min(os.sched_getaffinity(1))}),
    lambda: os.setpriority(os.PRIO_PROCESS, 1, 19),
    lambda: os.nice(19),
    lambda: resource.prlimit(1, resource.RLIMIT_NOFILE, (4, 4)),
    lambda: resource.prlimit(os.getppid(), resource.RLIMIT_CPU, (1, 1)),
):
    try:
        attempt()
        done.append(attempt)
    except OSError:
        pass
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
print("BREACH" if done else "blocked")
""",
        blocked="ok: blocked",
        then="import os; print('clean' if os.getpriority(os.PRIO_PROCESS, 1) <= 0 else 'BREACH')",
    ),
    Attack(
        name="file_left_behind",
        kind="survivors",
        code="""
open("/tmp/left", "w").write("x")
open("/dev/shm/left", "w").write("x")
""",
        blocked="ok: 1",
        then="""
import os

print("BREACH" if os.listdir("/tmp") or os.listdir("/dev/shm") else "clean")
""",
    ),
    Attack(
        name="named_memory",
        kind="survivors",
        code="""
from multiprocessing import shared_memory, resource_tracker

resource_tracker.register = lambda *_: None
memory = shared_memory.SharedMemory("left", create=True, size=4096)
memory.buf[:4] = b"left"
print("made")
""",
        blocked="ok: made",
        then="""
import os

print("BREACH" if os.path.exists("/dev/shm/left") else "clean")
""",
    ),
    Attack(
        name="named_semaphore",
        kind="survivors",
        code="""
import _multiprocessing

semaphore = _multiprocessing.SemLock(0, 0, 1, "/left", False)
print("made")
""",
        blocked="ok: made",
        then="""
import _multiprocessing

print("clean") if _multiprocessing.SemLock(0, 0, 1, "/left", False) else 0
""",
    ),
    Attack(
        name="system_v_objects",
        kind="survivors",
        code="""
import ctypes

libc = ctypes.CDLL(None, use_errno=True)
made = (libc.shmget(77, 4096, 0o1666), libc.semget(77, 1, 0o1666), libc.msgget(77, 0o1666))
print("BREACH" if max(made) >= 0 else "blocked")
""",
        blocked="ok: blocked",
        then="""
import ctypes

libc = ctypes.CDLL(None)
print(
    "BREACH" if max(libc.shmget(77, 4096, 0), libc.semget(77, 1, 0), libc.msgget(77, 0)) >= 0 else "clean"
)
""",
    ),
    Attack(
        name="daemon",
        kind="survivors",
        code="""
import os, time

if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        while True:
            time.sleep(1)
print("BREACH")
""",
        blocked="error: .*PermissionError.*",
    ),
    Attack(
        name="threads_that_go_on",
        kind="survivors",
        code="""
import threading, time


def forever():
    while True:
        time.sleep(0.01)


for _ in range(8):
    threading.Thread(target=forever).start()
print("main thread has ended")
""",
        blocked="ok: main thread has ended",
    ),
    Attack(
        name="refuses_to_end",
        kind="survivors",
        code="""
import atexit, signal, threading, time

atexit.register(time.sleep, 1000)
threading._shutdown = lambda: time.sleep(1000)


class Clinging:
    def __del__(self):
        time.sleep(1000)


clinging = Clinging()
clinging.self = clinging
print("end")
""",
        blocked="ok: end",
    ),
    Attack(
        name="message_queue",
        kind="survivors",
        code="""
import ctypes

libc = ctypes.CDLL(None, use_errno=True)
print("BREACH" if ctypes.CDLL("librt.so.1").mq_open(b"/left", 0o102, 0o600, None) >= 0 else "blocked")
""",
        blocked="ok: blocked",
    ),
]
