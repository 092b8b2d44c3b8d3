"""Attacks on time and memory."""

from __future__ import annotations

from tests.envs.sandbox.attacks.attack import Attack


def _endless(name: str, code: str) -> Attack:
    return Attack(name=name, kind="time", code=code, blocked="timeout: .*", time_limit_s=0.7)


TIME_AND_MEMORY = [
    _endless(
        "sleep_in_c",
        """
import ctypes

ctypes.CDLL(None).sleep(10**6)
""",
    ),
    _endless(
        "slow_regex",
        """
import re

re.match(r"(a+)+$", "a" * 64 + "b")
""",
    ),
    _endless(
        "swallows_every_exception",
        """
while True:
    try:
        while True:
            pass
    except BaseException:
        pass
""",
    ),
    _endless(
        "ignores_every_signal",
        """
import signal, time

for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
    signal.signal(number, signal.SIG_IGN)
time.sleep(10**6)
""",
    ),
    _endless(
        "closes_its_output_and_sleeps",
        """
import os, time

for fd in range(64):
    try:
        os.close(fd)
    except OSError:
        pass
time.sleep(10**6)
""",
    ),
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
    _endless(
        "stops_itself",
        """
import os, signal

os.kill(os.getpid(), signal.SIGSTOP)
""",
    ),
    Attack(
        name="raises_its_cpu_limit",
        kind="time",
        code="""
import resource

resource.setrlimit(resource.RLIMIT_CPU, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print("BREACH")
""",
        blocked="error: .*ValueError: not allowed to raise maximum limit.*",
    ),
    Attack(
        name="many_small_objects",
        kind="memory",
        code="""
x = []
while len(x) < 3000:
    x.append(bytearray(1 << 20))
print("BREACH")
""",
        blocked="error: .*MemoryError.*",
    ),
    Attack(
        name="large_array",
        kind="memory",
        code="""
import numpy

x = numpy.ones(10**9)
print("BREACH")
""",
        blocked="error: .*MemoryError.*",
    ),
    Attack(
        name="shared_mapping",
        kind="memory",
        code="""
import mmap

x = mmap.mmap(-1, 4 << 30)
print("BREACH")
""",
        blocked=r"error: .*OSError: \[Errno 12\].*",
    ),
    Attack(
        name="memory_file",
        kind="memory",
        code="""
import os

os.memfd_create("x")
print("BREACH")
""",
        blocked=r"error: .*(PermissionError|OSError: \[Errno 1\]).*",
        control=True,
    ),
    Attack(
        name="raises_its_memory_limit",
        kind="memory",
        code="""
import resource

resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
print("BREACH")
""",
        blocked="error: .*ValueError: not allowed to raise maximum limit.*",
    ),
    Attack(
        name="locked_memory",
        kind="memory",
        code="""
import ctypes

libc = ctypes.CDLL(None, use_errno=True)
page = ctypes.create_string_buffer(1 << 20)
print("BREACH" if libc.mlock(page, 1 << 20) == 0 or libc.mlockall(3) == 0 else "blocked")
""",
        blocked="ok: blocked",
    ),
    Attack(
        name="system_v_memory",
        kind="memory",
        code="""
import ctypes

libc = ctypes.CDLL(None, use_errno=True)
made = [libc.shmget(0, 1 << 30, 0o1600) for _ in range(4)]
print("BREACH" if max(made) >= 0 else "blocked")
""",
        blocked="ok: blocked",
    ),
    Attack(
        name="full_pipes",
        kind="memory",
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
        name="deep_recursion",
        kind="memory",
        code="""
import sys, threading

sys.setrecursionlimit(10**9)


def deeper():
    return deeper() + 1


deeper()
""",
        blocked="(signal 11|error|timeout): .*",
        time_limit_s=2.0,
    ),
]
