"""Attacks on later calls and on those beside them: what one call leaves behind, in memory, on disk or running."""

from tests.envs.sandbox.attacks.attack import Attack

LEFTOVERS = [
    Attack(
        name="changes_everything_in_its_process",
        code="""
import builtins, __main__, os, resource, signal, sys
import math, numpy, random, sympy

builtins.sum = lambda *_: "BREACH"
math.sqrt = numpy.sqrt = sympy.sqrt = lambda _: "BREACH"
sys.modules["random"] = math
__main__.left = "BREACH"
os.environ["LD_PRELOAD"] = "/tmp/x.so"
os.umask(0)
resource.setrlimit(resource.RLIMIT_NOFILE, (1, 1))
sys.setrecursionlimit(50)
numpy.seterr(all="raise")
numpy.set_printoptions(precision=1)
sympy.Integer.__add__ = lambda *_: sympy.Integer(13)
signal.signal(signal.SIGTERM, signal.SIG_IGN)
signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))
signal.setitimer(signal.ITIMER_REAL, 1000)
""",
        blocked="ok: .*",
        then="""
import __main__, os, resource, signal, sys
import math, numpy, random, sympy

found = {
    "builtins": sum([1]) != 1,
    "functions": (math.sqrt(4), numpy.sqrt(4), sympy.sqrt(4)) != (2, 2, 2),
    "modules": not hasattr(random, "random"),
    "variables": hasattr(__main__, "left") or "left" in globals(),
    "environment": "LD_PRELOAD" in os.environ or os.umask(0o22) == 0 or os.getcwd() != "/tmp",
    "limits": resource.getrlimit(resource.RLIMIT_NOFILE)[0] < 32 or sys.getrecursionlimit() < 500,
    "numpy": str(numpy.array([1.2345])) != "[1.2345]" or numpy.geterr()["divide"] != "warn",
    "sympy": sympy.Integer(1) + 1 != 2 or str(sympy.Symbol("y") + 1) != "y + 1",
    "signals": signal.getsignal(signal.SIGTERM) == signal.SIG_IGN or signal.pthread_sigmask(signal.SIG_BLOCK, []),
    "timers": signal.getitimer(signal.ITIMER_REAL) != (0, 0),
}
print([name for name, wrong in found.items() if wrong] or "clean")
""",
    ),
    Attack(
        name="file_left_behind",
        code="""
open("/tmp/colorsys.py", "w").write('print("BREACH")')
open("/dev/shm/left", "w").write("x")
print("made")
""",
        blocked="ok: made",
        then="""
import os, sys

sys.path.insert(0, "/tmp")
import colorsys

print("BREACH" if os.listdir("/tmp") or os.listdir("/dev/shm") else "clean")
""",
    ),
    Attack(
        name="traces_of_earlier_code",
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
        code="import fcntl, os; fcntl.flock(open(os.__file__), fcntl.LOCK_EX); os._exit(0)",
        blocked="ok: ",
        then="""
import fcntl, os

fcntl.flock(open(os.__file__), fcntl.LOCK_EX | fcntl.LOCK_NB)
print("clean")
""",
    ),
    Attack(
        name="refuses_to_end",
        code="""
import atexit, threading, time

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
]
