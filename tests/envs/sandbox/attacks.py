"""Attacks on the sandbox: names of what an attacker does, and how the sandbox must answer."""

from dataclasses import dataclass

#: What an attack's code, or the call after it, prints when it has the effect that it must not have.
BREACH = "BREACH"
#: A text that no process but the owner of the sandbox knows; `Baits` hides it in places that a call must not reach.
MARKER = "MARKER-" + "3f9c2a77d1"

_ATTEMPTS = """
import ctypes, fcntl, os, resource, socket

libc = ctypes.CDLL(None, use_errno=True)
machine = os.uname().machine
buffer = ctypes.create_string_buffer(b"\\x80", 256)
vector = (ctypes.c_size_t * 2)(ctypes.addressof(buffer), 64)
for attempt in ({attempts},):
    try:
        if attempt() != -1:
            print("BREACH")
    except (OSError, ValueError):
        pass
print("blocked")
"""


@dataclass(frozen=True, slots=True)
class Attack:
    """One attack. It has failed if nothing printed `BREACH`, nothing outside was touched and `blocked` matches.

    Attributes:
        blocked: a regular expression for the whole reply, "status: output": how the sandbox answered. It also makes
            sure that the attack was really made, and did not end in a mistake of its own.
        code: what is run; @NAME@ stands for the field `name` of `Baits`.
        then: run after it in a call of its own, which must print "clean".
        control: whether the attack can be made without a fence, where it must succeed: proof that it can.
        time_limit_s: of the attack's call.
    """

    name: str
    blocked: str
    code: str
    then: str = ""
    control: bool = False
    time_limit_s: float = 20.0


def raises(name: str, code: str, error: str, control: bool = False) -> Attack:
    """An attack that must end in an exception; `error`: a regular expression for it."""
    return Attack(name, f"error: .*({error}).*", f'{code}\nprint("BREACH")', control=control)


def refused(name: str, *attempts: str, control: bool = False) -> Attack:
    """An attack by expressions, each of which must raise an error or, as a call of the C library, return -1."""
    code = _ATTEMPTS.format(attempts=", ".join(f"lambda: {attempt}" for attempt in attempts))
    return Attack(name, "ok: blocked", code, control=control)


def system_calls(name: str, x86_64: tuple[int, ...], aarch64: tuple[int, ...], arguments: str) -> Attack:
    """An attack by raw system calls: their numbers on each machine."""
    numbers = {"x86_64": x86_64, "aarch64": aarch64}
    return refused(name, f"max(libc.syscall(number, {arguments}) for number in {numbers}[machine])")


def endless(name: str, code: str) -> Attack:
    return Attack(name, "timeout: .*", code, time_limit_s=0.7)


def fills(name: str, code: str, control: bool = False) -> Attack:
    """`code` writes until it cannot, and counts the bytes in `written`: more than 64 MB are a breach."""
    code = f"import os\nwritten, held = 0, []\ntry:\n{code}\nexcept OSError:\n    pass\n"
    code += 'print("BREACH" if written > 64 << 20 else "blocked")'
    return Attack(name, "ok: blocked", code, control=control)


_NOT_PERMITTED = r"PermissionError|OSError: \[Errno 1\]"
_NOT_THERE = "FileNotFoundError"

# fmt: off
#: What the kernel must refuse in this call's process: rights, processes, networks, mounts, signals.
REFUSALS = [
    # Rights.
    refused("becomes_root", "os.setuid(0)", "os.setgid(0)", "os.setgroups([0])", "os.setresuid(0, 0, 0)"),
    refused("takes_capabilities",
        "libc.capset((ctypes.c_uint32 * 2)(0x20080522, 0), (ctypes.c_uint32 * 6)(*[0xFFFFFFFF] * 6))",
        "libc.prctl(47, 2, 21, 0, 0)"),
    refused("raises_its_limits",
        *(f"resource.setrlimit(resource.RLIMIT_{name}, (-1, -1))" for name in ("CPU", "AS", "NPROC", "FSIZE"))),
    refused("lifts_the_filter", "libc.prctl(22, 0, 0, 0, 0)", "libc.prctl(38, 0, 0, 0, 0)"),
    refused("locks_memory", "libc.mlock(ctypes.create_string_buffer(1 << 20), 1 << 20)", "libc.mlockall(3)"),
    # Namespaces.
    refused("new_namespaces",
        *(
            f"libc.unshare({kind:#x})"
            for kind in (0x10000000, 0x20000, 0x20000000, 0x40000000, 0x8000000, 0x4000000, 0x2000000, 0x10020000)
        )),
    refused("thread_in_new_namespaces",
        *(
            f"libc.syscall({{'x86_64': 56, 'aarch64': 220}}[machine], {kind | 0x10000 | 0x800 | 0x500:#x}, 0, 0, 0, 0)"
            for kind in (0x10000000, 0x20000, 0x40000000, 0x80)
        )),
    refused("more_open_files",
        "libc.syscall({'x86_64': 56, 'aarch64': 220}[machine], 0x10900, 0, 0, 0, 0)",
        "libc.syscall(436, 60, 61, 2)",
        'socket.send_fds(socket.socketpair()[0], [b"x"], [0])'),
    refused("enters_namespaces", "max(libc.setns(fd, 0) for fd in range(64))"),
    # Other processes.
    refused("traces_its_parent",
        *(f"libc.ptrace({number}, os.getppid(), 0, 0)" for number in (16, 0x4206)),
        "libc.ptrace(0, 0, 0, 0)"),
    refused("reads_and_writes_its_parents_memory",
        *(f"libc.process_vm_{name}(os.getppid(), vector, 1, vector, 1, 0)" for name in ("readv", "writev"))),
    raises("fork", "import os; os.fork()", _NOT_PERMITTED),
    raises("another_program",
        """import os, sys; os.execv(sys.executable, ["python", "-c", 'print("BREACH")'])""",
        _NOT_PERMITTED,
        control=True),
    system_calls("raw_clone_and_vfork", (56, 57, 58, 435), (220, 435), "17, 0, 0, 0, 0"),
    raises("process_descriptors", "import os; os.pidfd_open(os.getppid())", r"PermissionError: \[Errno 1\]", True),
    system_calls("raw_signals", (129, 297, 424, 438), (138, 240, 424, 438), "os.getppid(), 9, buffer, 0"),
    refused("pins_and_starves_the_supervisor",
        "os.sched_setaffinity(1, {min(os.sched_getaffinity(1))})",
        "os.setpriority(os.PRIO_PROCESS, 1, 19)",
        "os.nice(19)",
        "resource.prlimit(1, resource.RLIMIT_NOFILE, (4, 4))",
        "resource.prlimit(os.getppid(), resource.RLIMIT_CPU, (1, 1))"),
    # Things that outlive a process or lie outside of its address space.
    raises("memory_file", 'import os; os.memfd_create("x")', _NOT_PERMITTED, control=True),
    refused(
        "system_v_objects", "libc.shmget(77, 1 << 30, 0o1666)", "libc.semget(77, 1, 0o1666)", "libc.msgget(77, 950)"),
    refused("message_queue", 'ctypes.CDLL("librt.so.1").mq_open(b"/left", 0o102, 0o600, None)'),
    system_calls("keys_of_the_kernel", (248,), (217,), 'b"user", b"attack", b"x", 1, -3'),
    system_calls("rare_system_calls",
        (
            *(101, 133, 135, 154, 155, 161, 163, 165, 166, 167, 169, 170, 172, 173, 175, 179, 212, 246, 248, 250, 272),
            *(298, 300, 303, 304, 308, 310, 311, 312, 313, 317, 319, 320, 321, 323, 425, 427, 428, 429, 430, 434, 438),
            *(440, 442, 443, 444, 446, 447, 448),
        ),
        (
            *(39, 40, 41, 51, 97, 104, 105, 106, 117, 142, 161, 162, 217, 219, 224, 241, 262, 264, 265, 268, 270, 271),
            *(272, 273, 277, 279, 280, 282, 425, 427, 428, 429, 430, 434, 438, 440, 442, 443, 444, 446, 447, 448),
        ),
        "0, 0, 0, 0, 0, 0"),
    # Mounts and devices.
    refused("mounts",
        'libc.mount(b"proc", b"/tmp", b"proc", 0, None)',
        'libc.mount(b"none", b"/", None, 32 | 4096, None)',
        'libc.mount(b"/", b"/tmp", None, 4096, None)',
        'libc.umount2(b"/tmp", 2)',
        'libc.umount2(b"/", 2)',
        'libc.mount(b"tmpfs", b"/tmp", b"tmpfs", 0, b"size=10g")',
        'libc.mount(b"none", b"/tmp", None, 32, b"size=10g")',
        'os.chroot("/tmp")'),
    refused("makes_a_device", 'os.mknod("disk", 0o60600, os.makedev(254, 0))'),
    refused(
        "types_into_the_terminal", *(f'fcntl.ioctl({fd}, 0x5412, b"x")' for fd in range(3)), 'os.open("/dev/tty", 2)'),
    system_calls("file_handles", (303,), (264,), '-100, b"/usr", buffer, ctypes.byref(ctypes.c_int()), 0'),
    system_calls("opens_file_handles", (304,), (265,), 'os.open("/", os.O_RDONLY), buffer, os.O_RDONLY'),
    refused("changes_modes_and_owners",
        'os.chmod("/tmp/..", 0o777)',
        "os.chmod(os.__file__, 0o777)",
        "os.utime(os.__file__)",
        'os.chown("/dev/null", 0, 0)',
        'os.rename("/dev/shm", "/dev/x")',
        'os.remove("/dev/null")'),
    # Files that are not the call's.
    raises("file_of_the_owner", 'open("@secret_file@").read()', _NOT_THERE, control=True),
    raises("hard_link", 'import os; os.link("@secret_file@", "x")', _NOT_THERE),
    raises("hard_link_to_the_library",
        'import os; os.link(os.__file__, "x"); open("x", "a")',
        r"OSError: \[Errno 18\]|PermissionError"),
    refused("folder_swapped_for_a_link",
        *(f'(os.rename("{path}", "{path}2"), os.symlink("@folder@", "{path}"))' for path in ("/tmp", "/dev/shm"))),
    # The network.
    raises("tcp",
        'import socket; socket.create_connection(("127.0.0.1", @port@), 2)',
        r"PermissionError: \[Errno 1\]",
        control=True),
    raises("names", 'import socket; socket.gethostbyname("example.org")', "gaierror|OSError"),
    raises("message_from_a_socket_pair",
        "import socket; one, two = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM);"
        ' one.sendto(b"x", chr(0) + "@abstract@-messages")',
        "ConnectionRefusedError|PermissionError|OSError",
        control=True),
    refused("other_families",
        *(
            f"socket.{make}({family}, {kind}, 0)"
            for family in range(1, 46)
            for kind in (1, 2, 3, 5)
            for make in ("socket", "socketpair")
            if (make, family) != ("socketpair", 1)
        )),
    system_calls(
        "raw_socket_calls", (41, 42, 43, 49, 50, 288, 425), (198, 200, 201, 202, 203, 242, 425), "2, 1, 0, 0, 0, 0"),
]

#: On time, memory, disk and the size of the output.
LIMITS = [
    endless("swallows_exceptions_and_signals", """
import signal

for number in set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}:
    signal.signal(number, signal.SIG_IGN)
while True:
    try:
        while True:
            pass
    except BaseException:
        pass
"""),
    endless("closes_its_output_and_sleeps", "import os, time; os.closerange(0, 64); time.sleep(10**6)"),
    endless("busy_threads", """
import threading


def busy():
    while True:
        pass


for _ in range(8):
    threading.Thread(target=busy).start()
busy()
"""),
    endless("stops_itself", "import os, signal; os.kill(os.getpid(), signal.SIGSTOP)"),
    raises("many_small_objects", "x = [bytearray(1 << 20) for _ in range(3000)]", "MemoryError"),
    fills("buffers_of_sockets", """
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
"""),
    raises("shared_mapping", "import mmap; x = mmap.mmap(-1, 4 << 30)", r"OSError: \[Errno 12\]"),
    Attack("deep_recursion", "(signal 11|error|timeout): .*", """
import sys

sys.setrecursionlimit(10**9)


def deeper():
    return deeper() + 1


deeper()
""", time_limit_s=2.0),
    Attack("full_pipes", "ok: blocked", """
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
"""),
    Attack("thread_bomb", r"ok: 3\d threads", """
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
"""),
    fills("many_files_together", """
    for number in range(50):
        held.append(open(f"x{number}", "wb", buffering=0))
        written += held[-1].write(bytes(4 << 20))
""", control=True),
    fills("shared_memory_beside_files", """
    for number in range(20):
        for path in (f"/tmp/x{number}", f"/dev/shm/y{number}"):
            held.append(open(path, "wb", buffering=0))
            written += held[-1].write(bytes(8 << 20))
"""),
    fills("very_many_files", """
    for number in range(20000):
        open(f"x{number}", "w").close()
        written += (number > 5000) * (1 << 30)
"""),
    raises("sparse_file", 'open("x", "wb").truncate(1 << 40)', r"OSError: \[Errno 27\]"),
    Attack("one_huge_line", "output: .*", 'import sys; [sys.stdout.write("x" * (1 << 20)) for _ in range(100)]'),
    Attack("endless_errors", "output: .*", 'import os\nwhile True:\n    os.write(2, b"x" * 65536)'),
]

#: On what a call finds around it: secrets, the server in its memory, the reply, other processes.
INTRUSIONS = [
    Attack("whatever_holds_the_secret", "ok: blocked", """
import os, sys

marker = "MARKER-" + "3f9c2a77" + "d1"
if any(marker in str(place) for place in (dict(os.environ), sys.argv, sys.orig_argv)):
    print("BREACH")
skipped = {"usr", "lib", "lib64", "lib32", "packages", "site-packages", "dist-packages", "sys", "proc"}
for folder, folders, names in os.walk("/"):
    folders[:] = [name for name in folders if name not in skipped]
    for path in (os.path.join(folder, name) for name in names):
        try:
            small = os.path.isfile(path) and os.path.getsize(path) < 1 << 20
            if small and marker in open(path, errors="ignore").read():
                print("BREACH", path)
        except OSError:
            pass
print("blocked")
"""),
    Attack("homes_settings_devices_and_processes", r"ok: blocked \[('ld.so.cache')?\]", """
import os

found = [
    path
    for path in (
        "/home", "/var", "/opt", "/srv", "/run", "/proc/1", "/proc/self", "/proc/self/root", "/proc/sysrq-trigger",
        "/proc", "/sys", "/boot", "/mnt", "/bin", "/usr/bin", "/usr/share", "/root/.ssh", "/dev/fd", "/dev/stdin",
        "/dev/mem", "/dev/kmsg", "/dev/sda", "/dev/vda", "/dev/tty", "/dev/pts", "/dev/fuse", "/dev/kvm",
        "/dev/net/tun",
    )
    if os.path.lexists(path)
]
print("BREACH", found) if found else print("blocked", os.listdir("/etc"))
""", control=True),
    Attack("writes_to_what_it_sees", r"ok: ((1|13|30) ){4}(2|13|26|30)", """
import os, sys
import numpy

for path, mode in (
    ("/x", "w"),
    (os.path.dirname(os.__file__) + "/sandbox_attack.py", "w"),
    (numpy.__file__, "a"),
    ("/sandbox/server/execute.py", "a"),
    (sys.executable, "r+b"),
):
    try:
        open(path, mode)
        print("BREACH", path)
    except OSError as error:
        print(error.errno, end=" ")
"""),
    Attack("link_that_cleaning_might_follow", "ok: linked", """
import os

os.symlink("@folder@", "folder")
os.mkdir("inner")
os.symlink("/", "inner/root")
os.symlink("@secret_file@", "file")
print("linked")
"""),
    Attack("calls_of_other_architectures", r"(signal (31|11): |ok: \(no output\)|ok: )", """
import ctypes, mmap, os

if os.uname().machine == "x86_64":
    page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(bytes.fromhex("b814000000cd80c3"))  # mov eax, 20 (getpid); int 0x80; ret
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(0x40000000 | 39) > 0:
        print("BREACH")
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    print("BREACH", ctypes.CFUNCTYPE(ctypes.c_int)(address)())
"""),
    # PR_GET_NO_NEW_PRIVS
    Attack("gains_rights_by_a_program", "ok: 1", "import ctypes; print(ctypes.CDLL(None).prctl(39, 0, 0, 0, 0))"),
    Attack("inherited_files", r"ok: blocked \[\(0, 2\), \(1, 1\), \(2, 1\)\]", """
import os

kinds = []
for fd in range(4096):
    try:
        kinds.append((fd, os.fstat(fd).st_mode >> 12))
    except OSError:
        pass
print("BREACH" if [fd for fd, _ in kinds if fd > 2] else "blocked", kinds)
"""),
    Attack("frames_of_the_server", "ok: blocked", """
import gc, socket, sys

frame, found = sys._getframe(), []
while frame:
    found += [value for value in frame.f_locals.values() if isinstance(value, socket.socket)]
    frame = frame.f_back
found += [value for value in gc.get_objects() if isinstance(value, socket.socket)]
for each in found:
    try:
        each.send(b'+{"status": "ok", "output": "forged"}')
        print("BREACH")
    except OSError:
        pass
print("blocked")
"""),
    Attack("replaces_the_server_in_memory", "error: Line 14: ValueError: still an error", """
import os, sys


def lie(*_):
    return 0


for module in list(sys.modules.values()):
    for name in ("execute", "run_program", "supervise", "status_of", "confine"):
        if getattr(module, name, None):
            setattr(module, name, lie)
os.wait4 = os.waitpid = lambda *_: (1, 0, None)
raise ValueError("still an error")
"""),
    # The output, and the tool's report about the call.
    Attack("forged_end", "signal 9: ready\nok", r"""
import os

os.write(1, b"ready\nok\n")
os.closerange(1, 3)
os.kill(os.getpid(), 9)
"""),
    Attack("bytes_that_are_no_text", "error: \ufffd+\x00",
           r'import os; os.write(1, bytes(range(128, 256)) + b"\0"); os._exit(7)'),
    Attack("text_that_cannot_be_encoded", r"ok: \?\?\?", r'print("\ud800" * 3)'),
    Attack("replaced_stdout", "error: .*", "import sys; sys.stdout = sys.stderr = None; raise SystemExit(3)"),
    Attack("lying_exception", "error: .*", """
class Lie(BaseException):
    def __str__(self):
        raise SystemExit(0)


raise Lie
"""),
    # Signals.
    Attack("kills_its_parent", "ok: went on", """
import os, time

for number in (9, 19, 15, 2, 11, 14, 17, 34, 64):
    try:
        os.kill(os.getppid(), number)
    except OSError:
        pass
time.sleep(0.3)
print("went on")
"""),
    Attack("kills_every_number", "ok: blocked", """
import os

killed = []
for pid in {*range(1, 70000), @victim@} - {os.getpid()}:
    try:
        os.kill(pid, 9)
        killed.append(pid)
    except OSError:
        pass
print("BREACH" if set(killed) - {1} else "blocked")
"""),
    Attack("signals_by_a_file", "(ok: went on|error: .*(PermissionError|OSError).*)", """
import fcntl, os, signal, time

read, write = os.pipe()
fcntl.fcntl(read, fcntl.F_SETOWN, os.getppid())
fcntl.fcntl(read, 10, signal.SIGKILL)
fcntl.fcntl(read, fcntl.F_SETFL, os.O_ASYNC)
os.write(write, b"x")
time.sleep(0.2)
print("went on")
"""),
]

#: On later calls and on those beside them: what one call leaves behind, in memory, on disk or running.
LEFTOVERS = [
    Attack("changes_everything_in_its_process", "ok: .*", """
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
""", then="""
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
"""),
    Attack("file_left_behind", "ok: made", """
open("/tmp/colorsys.py", "w").write('print("BREACH")')
open("/dev/shm/left", "w").write("x")
print("made")
""", then="""
import os, sys

sys.path.insert(0, "/tmp")
import colorsys

print("BREACH" if os.listdir("/tmp") or os.listdir("/dev/shm") else "clean")
"""),
    Attack("traces_of_earlier_code", r"ok: \d+", """
text = "FOOTPRINT" + "-" + "of-an-earlier-call" * 50
print(len(text))
""", then=r"""
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
"""),
    Attack("calls_running_meanwhile", "ok: blocked", """
import gc

found = [
    text
    for text in gc.get_objects()
    if isinstance(text, (dict, list))
    and "neighbour" in str(text)[:100000]
    and "found = [text" not in str(text)
]
print("BREACH" if found else "blocked")
"""),
    Attack("locks_on_shared_files", "ok: ", """
import fcntl, os

fcntl.flock(open(os.__file__), fcntl.LOCK_EX)
os._exit(0)
""", then="""
import fcntl, os

fcntl.flock(open(os.__file__), fcntl.LOCK_EX | fcntl.LOCK_NB)
print("clean")
"""),
    Attack("refuses_to_end", "ok: end", """
import atexit, threading, time

atexit.register(time.sleep, 1000)
threading._shutdown = lambda: time.sleep(1000)


class Clinging:
    def __del__(self):
        time.sleep(1000)


clinging = Clinging()
clinging.self = clinging
print("end")
"""),
]

#: Name -> attack.
ATTACKS = {attack.name: attack for attack in (*REFUSALS, *LIMITS, *INTRUSIONS, *LEFTOVERS)}
