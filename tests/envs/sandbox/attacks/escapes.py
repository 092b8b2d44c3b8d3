"""Attacks on the fence itself: by system calls, capabilities, open files and /proc."""

from __future__ import annotations

from tests.envs.sandbox.attacks.attack import Attack

ESCAPES = [
    Attack(
        name="is_root",
        kind="escape",
        code="""
import os

for attempt in (
    lambda: os.setuid(0),
    lambda: os.setgid(0),
    lambda: os.setgroups([0]),
    lambda: os.setresuid(0, 0, 0),
):
    try:
        attempt()
        print("BREACH")
    except OSError:
        pass
print("BREACH" if 0 in (os.getuid(), os.geteuid(), os.getgid()) else "blocked")
""",
        blocked="ok: blocked",
    ),
    Attack(
        name="takes_capabilities",
        kind="escape",
        code="""
import ctypes

libc = ctypes.CDLL(None, use_errno=True)
header = (ctypes.c_uint32 * 2)(0x20080522, 0)
full = (ctypes.c_uint32 * 6)(*[0xFFFFFFFF] * 6)
ambient = libc.prctl(47, 2, 21, 0, 0)
print("blocked" if (libc.capset(header, full), ambient) == (-1, -1) else "BREACH")
""",
        blocked="ok: blocked",
    ),
    Attack(
        name="new_namespaces",
        kind="escape",
        code="""
import ctypes

libc = ctypes.CDLL(None, use_errno=True)
kinds = (0x10000000, 0x20000, 0x20000000, 0x40000000, 0x8000000, 0x4000000, 0x2000000, 0x10020000)
print("blocked" if {libc.unshare(kind) for kind in kinds} == {-1} else "BREACH")
""",
        blocked="ok: blocked",
    ),
    Attack(
        name="thread_in_new_namespaces",
        kind="escape",
        code="""
import ctypes, os

libc = ctypes.CDLL(None, use_errno=True)
clone = {"x86_64": 56, "aarch64": 220}[os.uname().machine]
made = {
    libc.syscall(clone, kind | 0x10000 | 0x800 | 0x100, 0, 0, 0, 0)
    for kind in (0x10000000, 0x20000, 0x40000000, 0x80)
}
print("blocked" if made == {-1} else "BREACH")
""",
        blocked="ok: blocked",
    ),
    Attack(
        name="enters_namespaces",
        kind="escape",
        code="""
import ctypes

libc = ctypes.CDLL(None, use_errno=True)
print("blocked" if {libc.setns(fd, 0) for fd in range(64)} == {-1} else "BREACH")
""",
        blocked="ok: blocked",
    ),
    Attack(
        name="traces_its_parent",
        kind="escape",
        code="""
import ctypes, os

libc = ctypes.CDLL(None, use_errno=True)
made = {libc.ptrace(request, os.getppid(), 0, 0) for request in (16, 0x4206)} | {libc.ptrace(0, 0, 0, 0)}
print("blocked" if made == {-1} else "BREACH")
""",
        blocked="ok: blocked",
    ),
    Attack(
        name="reads_its_parents_memory",
        kind="escape",
        code="""
import ctypes, os

libc = ctypes.CDLL(None, use_errno=True)
buffer = ctypes.create_string_buffer(64)
vector = (ctypes.c_size_t * 2)(ctypes.addressof(buffer), 64)
for name in ("process_vm_readv", "process_vm_writev"):
    if getattr(libc, name)(os.getppid(), vector, 1, vector, 1, 0) >= 0:
        print("BREACH")
print("blocked")
""",
        blocked="ok: blocked",
    ),
    Attack(
        name="other_processes_in_proc",
        kind="escape",
        code="""
import glob, os

found = [
    name
    for name in (
        "/proc/1/mem", "/proc/1/environ", "/proc/self/mem", "/proc/self/environ",
        "/proc/sysrq-trigger", "/proc/sys/kernel/core_pattern", "/proc/kcore",
    )
    if os.path.exists(name)
]
print("BREACH" if found or glob.glob("/proc/*") else "blocked")
""",
        blocked="ok: blocked",
        control=True,
    ),
    Attack(
        name="rare_system_calls",
        kind="escape",
        code="""
import ctypes, os

libc = ctypes.CDLL(None, use_errno=True)
numbers = {
    "x86_64": (
        101, 133, 135, 154, 155, 161, 163, 165, 166, 167, 169, 170, 172, 173, 175, 179, 212, 246,
        248, 250, 272, 298, 300, 303, 304, 308, 310, 311, 312, 313, 317, 319, 320, 321, 323, 425,
        427, 428, 429, 430, 434, 438, 440, 442, 443, 444, 446, 447, 448,
    ),
    "aarch64": (
        39, 40, 41, 51, 97, 104, 105, 106, 117, 142, 161, 162, 217, 219, 224, 241, 262, 264, 265,
        268, 270, 271, 272, 273, 277, 279, 280, 282, 425, 427, 428, 429, 430, 434, 438, 440, 442,
        443, 444, 446, 447, 448,
    ),
}[os.uname().machine]
made = [number for number in numbers if libc.syscall(number, 0, 0, 0, 0, 0, 0) != -1]
print("BREACH" if made else "blocked", made)
""",
        blocked=r"ok: blocked \[\]",
    ),
    Attack(
        name="keys_of_the_kernel",
        kind="escape",
        code="""
import ctypes, os

libc = ctypes.CDLL(None, use_errno=True)
add, control = {"x86_64": (248, 250), "aarch64": (217, 219)}[os.uname().machine]
made = (libc.syscall(add, b"user", b"attack", b"x", 1, -3), libc.syscall(control, 0, -3, 1, 0, 0))
print("blocked" if made == (-1, -1) else "BREACH")
""",
        blocked="ok: blocked",
    ),
    Attack(
        name="calls_of_other_architectures",
        kind="escape",
        code="""
import ctypes, mmap, os

if os.uname().machine == "x86_64":
    page = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
    page.write(bytes.fromhex("b814000000cd80c3"))  # mov eax, 20 (getpid); int 0x80; ret
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(0x40000000 | 39) > 0:
        print("BREACH")
    address = ctypes.addressof(ctypes.c_char.from_buffer(page))
    print("BREACH", ctypes.CFUNCTYPE(ctypes.c_int)(address)())
""",
        blocked=r"(signal (31|11): |ok: \(no output\)|ok: )",
    ),
    Attack(
        name="lifts_the_filter",
        kind="escape",
        code="""
import ctypes

libc = ctypes.CDLL(None, use_errno=True)
print(
    "BREACH" if libc.prctl(22, 0, 0, 0, 0) == 0 or libc.prctl(38, 0, 0, 0, 0) == 0 else "blocked",
    libc.prctl(39, 0, 0, 0, 0),
)
""",
        blocked="ok: blocked 1",
    ),
    Attack(
        name="inherited_files",
        kind="escape",
        code="""
import os

kinds = []
for fd in range(4096):
    try:
        kinds.append((fd, os.fstat(fd).st_mode >> 12))
    except OSError:
        pass
print("BREACH" if [fd for fd, _ in kinds if fd > 2] else "blocked", kinds)
""",
        blocked=r"ok: blocked \[\(0, 2\), \(1, 1\), \(2, 1\)\]",
    ),
    Attack(
        name="types_into_the_terminal",
        kind="escape",
        code="""
import fcntl, os

for fd in (0, 1, 2):
    try:
        fcntl.ioctl(fd, 0x5412, b"x")
        print("BREACH")
    except OSError:
        pass
try:
    print("BREACH", os.open("/dev/tty", os.O_RDWR))
except OSError:
    print("blocked")
""",
        blocked="ok: blocked",
    ),
    Attack(
        name="secrets_of_the_environment",
        kind="escape",
        code="""
import ctypes, os, sys

marker = "MARKER-" + "3f9c2a77" + "d1"
places = [str(dict(os.environ)), str(sys.argv), str(sys.orig_argv)]
print("BREACH" if any(marker in place for place in places) else "blocked")
""",
        blocked="ok: blocked",
    ),
    Attack(
        name="frames_of_the_server",
        kind="escape",
        code="""
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
""",
        blocked="ok: blocked",
    ),
    Attack(
        name="replaces_the_server_in_memory",
        kind="escape",
        code="""
import os, sys

frame = sys._getframe()
while frame.f_back:
    frame = frame.f_back


def lie(*_):
    return 0


for module in list(sys.modules.values()):
    for name in ("execute", "run_program", "supervise", "status_of", "confine"):
        if getattr(module, name, None):
            setattr(module, name, lie)
os.wait4 = os.waitpid = lambda *_: (1, 0, None)
raise ValueError("still an error")
""",
        blocked="error: Line 18: ValueError: still an error",
    ),
]
