"""Attacks on what a call finds around it: secrets, the server in its memory, the reply, other processes."""

from tests.envs.sandbox.attacks.attack import Attack

INTRUSIONS = [
    Attack(
        name="whatever_holds_the_secret",
        code="""
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
""",
        blocked="ok: blocked",
    ),
    Attack(
        name="homes_settings_devices_and_processes",
        code="""
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
""",
        blocked=r"ok: blocked \[('ld.so.cache')?\]",
        control=True,
    ),
    Attack(
        name="writes_to_what_it_sees",
        code="""
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
""",
        blocked=r"ok: ((1|13|30) ){4}(2|13|26|30)",
    ),
    Attack(
        name="link_that_cleaning_might_follow",
        code="""
import os

os.symlink("@folder@", "folder")
os.mkdir("inner")
os.symlink("/", "inner/root")
os.symlink("@secret_file@", "file")
print("linked")
""",
        blocked="ok: linked",
    ),
    Attack(
        name="calls_of_other_architectures",
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
        name="gains_rights_by_a_program",
        code="import ctypes; print(ctypes.CDLL(None).prctl(39, 0, 0, 0, 0))  # PR_GET_NO_NEW_PRIVS",
        blocked="ok: 1",
    ),
    Attack(
        name="inherited_files",
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
        name="frames_of_the_server",
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
        code="""
import os, sys


def lie(*_):
    return 0


for module in list(sys.modules.values()):
    for name in ("execute", "run_program", "supervise", "status_of", "confine"):
        if getattr(module, name, None):
            setattr(module, name, lie)
os.wait4 = os.waitpid = lambda *_: (1, 0, None)
raise ValueError("still an error")
""",
        blocked="error: Line 14: ValueError: still an error",
    ),
    # The output, and the tool's report about the call.
    Attack(
        name="forged_end",
        code=r"""
import os

os.write(1, b"ready\nok\n")
os.closerange(1, 3)
os.kill(os.getpid(), 9)
""",
        blocked="signal 9: ready\nok",
    ),
    Attack(
        "bytes_that_are_no_text",
        r'import os; os.write(1, bytes(range(128, 256)) + b"\0"); os._exit(7)',
        "error: \ufffd+\x00",
    ),
    Attack("text_that_cannot_be_encoded", r'print("\ud800" * 3)', r"ok: \?\?\?"),
    Attack("replaced_stdout", "import sys; sys.stdout = sys.stderr = None; raise SystemExit(3)", "error: .*"),
    Attack(
        "lying_exception",
        """
class Lie(BaseException):
    def __str__(self):
        raise SystemExit(0)


raise Lie
""",
        "error: .*",
    ),
    # Signals.
    Attack(
        name="kills_its_parent",
        code="""
import os, time

for number in (9, 19, 15, 2, 11, 14, 17, 34, 64):
    try:
        os.kill(os.getppid(), number)
    except OSError:
        pass
time.sleep(0.3)
print("went on")
""",
        blocked="ok: went on",
    ),
    Attack(
        name="kills_every_number",
        code="""
import os

killed = []
for pid in {*range(1, 70000), @victim@} - {os.getpid()}:
    try:
        os.kill(pid, 9)
        killed.append(pid)
    except OSError:
        pass
print("BREACH" if set(killed) - {1} else "blocked")
""",
        blocked="ok: blocked",
    ),
    Attack(
        name="signals_by_a_file",
        code="""
import fcntl, os, signal, time

read, write = os.pipe()
fcntl.fcntl(read, fcntl.F_SETOWN, os.getppid())
fcntl.fcntl(read, 10, signal.SIGKILL)
fcntl.fcntl(read, fcntl.F_SETFL, os.O_ASYNC)
os.write(write, b"x")
time.sleep(0.2)
print("went on")
""",
        blocked="(ok: went on|error: .*(PermissionError|OSError).*)",
    ),
]
