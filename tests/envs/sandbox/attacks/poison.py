"""Attacks on later calls, by changes that an earlier call made."""

from __future__ import annotations

from tests.envs.sandbox.attacks.attack import Attack

POISON = [
    Attack(
        name="replaced_builtins",
        kind="poisoning",
        code="""
import builtins

builtins.sum = builtins.open = lambda *_: "BREACH"
""",
        blocked="ok: .*",
        then="""
print(sum([1]) if sum([1]) != 1 else "clean")
""",
    ),
    Attack(
        name="replaced_modules",
        kind="poisoning",
        code="""
import sys, math, numpy, sympy

math.sqrt = numpy.sqrt = sympy.sqrt = lambda _: "BREACH"
sys.modules["random"] = math
""",
        blocked="ok: ",
        then="""
import math, numpy, sympy, random

print("clean" if (math.sqrt(4), numpy.sqrt(4), sympy.sqrt(4)) == (2, 2, 2) and random.random else "BREACH")
""",
    ),
    Attack(
        name="variables",
        kind="poisoning",
        code="""
import __main__

__main__.left = left = "BREACH"
""",
        blocked="ok: ",
        then="""
import __main__

print(getattr(__main__, "left", globals().get("left", "clean")))
""",
    ),
    Attack(
        name="environment",
        kind="poisoning",
        code="""
import os

os.environ["PYTHONPATH"] = os.environ["LD_PRELOAD"] = "/tmp/x.so"
os.umask(0)
print("done")
""",
        blocked="ok: done",
        then="""
import os

print("BREACH" if "LD_PRELOAD" in os.environ or os.umask(0o22) == 0 or os.getcwd() != "/tmp" else "clean")
""",
    ),
    Attack(
        name="lowered_limits",
        kind="poisoning",
        code="""
import resource, sys

for what in (resource.RLIMIT_NOFILE, resource.RLIMIT_FSIZE, resource.RLIMIT_NPROC):
    resource.setrlimit(what, (1, 1))
sys.setrecursionlimit(50)
""",
        blocked="ok: ",
        then="""
import resource, sys

print(
    "BREACH"
    if resource.getrlimit(resource.RLIMIT_NOFILE)[0] < 32 or sys.getrecursionlimit() < 500
    else "clean"
)
""",
    ),
    Attack(
        name="module_in_the_folder",
        kind="poisoning",
        code="""
open("/tmp/colorsys.py", "w").write('print("BREACH")')
""",
        blocked="ok: .*",
        then="""
import sys

sys.path.insert(0, "/tmp")
import colorsys

print("clean")
""",
    ),
    Attack(
        name="compiled_modules",
        kind="poisoning",
        code="""
import os

folder = os.path.join(os.path.dirname(os.__file__), "__pycache__")
open(os.path.join(folder, "colorsys.cpython-311.pyc"), "wb").write(b"x")
print("BREACH")
""",
        blocked="error: .*(PermissionError|OSError|FileNotFoundError).*",
        then="""
import colorsys

print("clean")
""",
    ),
    Attack(
        name="settings_of_numpy",
        kind="poisoning",
        code="""
import numpy, random

numpy.seterr(all="raise")
numpy.set_printoptions(precision=1)
numpy.random.seed(9)
random.seed(9)
numpy.__config__ = None
""",
        blocked="ok: ",
        then="""
import numpy

print(
    "clean" if str(numpy.array([1.2345])) == "[1.2345]" and numpy.geterr()["divide"] == "warn" else "BREACH"
)
""",
    ),
    Attack(
        name="caches_of_sympy",
        kind="poisoning",
        code="""
import sympy
from sympy.core import cache

sympy.Integer.__add__ = lambda *_: sympy.Integer(13)
sympy.Symbol.__new__.__wrapped__ = None
""",
        blocked="(ok|error): .*",
        then="""
import sympy

print("clean" if sympy.Integer(1) + 1 == 2 and str(sympy.Symbol("y") + 1) == "y + 1" else "BREACH")
""",
    ),
    Attack(
        name="signal_handlers_and_timers",
        kind="poisoning",
        code="""
import signal

signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.signal(signal.SIGINT, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
signal.setitimer(signal.ITIMER_REAL, 0.001, 0.001)
""",
        blocked="ok: .*",
        then="""
import signal

print(
    "clean"
    if not signal.pthread_sigmask(signal.SIG_BLOCK, []) and signal.getitimer(signal.ITIMER_REAL) == (0, 0)
    else "BREACH"
)
""",
    ),
    Attack(
        name="traces_of_earlier_code",
        kind="poisoning",
        code="""
text = "FOOTPRINT" + "-" + "of-an-earlier-call" * 50
print(len(text))
""",
        blocked=r"ok: \d+",
        then=r"""
import ctypes, gc, re

needle = re.compile(rb"FOOTPRIN[T]' \+ '-'")
libc = ctypes.CDLL(None)
libc.sbrk.restype = ctypes.c_void_p
end = libc.sbrk(0)
objects = [
    value for value in gc.get_objects() if isinstance(value, (list, dict, tuple)) and len(value) < 2000
]
found = any(needle.search(repr(value).encode()) for value in objects) or needle.search(
    ctypes.string_at(end - (2 << 20), 2 << 20)
)
print("BREACH" if found else "clean")
""",
    ),
    Attack(
        name="calls_running_meanwhile",
        kind="poisoning",
        code="""
import gc

found = [
    text
    for text in gc.get_objects()
    if isinstance(text, (dict, list))
    and "neighbour" in str(text)[:100000]
    and "found = [text" not in str(text)
]
print("BREACH" if found else "blocked")
""",
        blocked="ok: blocked",
    ),
    Attack(
        name="locks_on_shared_files",
        kind="poisoning",
        code="""
import fcntl, os

file = open(os.__file__)
fcntl.flock(file, fcntl.LOCK_EX)
os._exit(0)
""",
        blocked="ok: ",
        then="""
import fcntl, os

fcntl.flock(open(os.__file__), fcntl.LOCK_EX | fcntl.LOCK_NB)
print("clean")
""",
    ),
]
