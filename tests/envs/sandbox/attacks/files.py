"""Attacks on files that are not the call's."""

from __future__ import annotations

from tests.envs.sandbox.attacks.attack import Attack

FILES = [
    Attack(
        name="file_of_the_owner",
        kind="file system",
        code="""
print(open("@secret_file@").read() and "BREACH")
""",
        blocked="error: .*FileNotFoundError.*",
        control=True,
    ),
    Attack(
        name="folder_of_the_owner",
        kind="file system",
        code="""
import os

os.listdir("@folder@")
print("BREACH")
""",
        blocked="error: .*FileNotFoundError.*",
        control=True,
    ),
    Attack(
        name="users_and_passwords",
        kind="file system",
        code="""
print(open("/etc/passwd").read() and "BREACH")
""",
        blocked="error: .*FileNotFoundError.*",
        control=True,
    ),
    Attack(
        name="whatever_holds_the_secret",
        kind="file system",
        code="""
import os

marker = "MARKER-" + "3f9c2a77" + "d1"
skipped = {"usr", "lib", "lib64", "lib32", "packages", "site-packages", "dist-packages", "sys", "proc"}
for folder, folders, names in os.walk("/"):
    folders[:] = [name for name in folders if name not in skipped]
    for name in names:
        path = os.path.join(folder, name)
        try:
            if (
                os.path.isfile(path)
                and os.path.getsize(path) < 1 << 20
                and marker in open(path, errors="ignore").read()
            ):
                print("BREACH", path)
        except OSError:
            pass
print("blocked")
""",
        blocked="ok: blocked",
    ),
    Attack(
        name="homes_and_settings",
        kind="file system",
        code="""
import os

found = [
    path
    for path in (
        "/home", "/var", "/opt", "/srv", "/run", "/proc", "/sys", "/boot", "/mnt", "/bin",
        "/usr/bin", "/usr/share", "/root/.ssh",
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
        kind="file system",
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
        name="changes_modes_and_owners",
        kind="file system",
        code="""
import os

for attempt in (
    lambda: os.chmod("/tmp/..", 0o777),
    lambda: os.chmod(os.__file__, 0o777),
    lambda: os.utime(os.__file__),
    lambda: os.chown("/dev/null", 0, 0),
    lambda: os.rename("/dev/shm", "/dev/x"),
    lambda: os.remove("/dev/null"),
):
    try:
        attempt()
        print("BREACH")
    except OSError:
        pass
print("blocked")
""",
        blocked="ok: blocked",
    ),
    Attack(
        name="devices",
        kind="file system",
        code="""
import os, stat

for path in (
    "/dev/mem", "/dev/kmsg", "/dev/sda", "/dev/vda", "/dev/tty", "/dev/pts", "/dev/fuse",
    "/dev/kvm", "/dev/net/tun",
):
    if os.path.exists(path):
        print("BREACH", path)
try:
    os.mknod("disk", stat.S_IFBLK | 0o600, os.makedev(254, 0))
    os.open("disk", os.O_RDONLY)
    print("BREACH")
except OSError:
    pass
print("blocked")
""",
        blocked="ok: blocked",
    ),
    Attack(
        name="mounts",
        kind="file system",
        code="""
import ctypes

libc = ctypes.CDLL(None, use_errno=True)
results = [
    libc.mount(b"proc", b"/tmp", b"proc", 0, None),
    libc.mount(b"none", b"/", None, 32 | 4096, None),
    libc.mount(b"/", b"/tmp", None, 4096, None),
    libc.umount2(b"/tmp", 2),
    libc.umount2(b"/", 2),
    libc.mount(b"tmpfs", b"/tmp", b"tmpfs", 0, b"size=10g"),
    libc.mount(b"none", b"/tmp", None, 32, b"size=10g"),
]
print("blocked" if set(results) == {-1} else "BREACH")
""",
        blocked="ok: blocked",
    ),
    Attack(
        name="another_root",
        kind="file system",
        code="""
import os

os.mkdir("r")
os.chroot("r")
print("BREACH")
""",
        blocked=r"error: .*PermissionError: \[Errno 1\].*",
    ),
    Attack(
        name="file_handles",
        kind="file system",
        code="""
import ctypes, os

libc = ctypes.CDLL(None, use_errno=True)
handle = (ctypes.c_char * 136)()
handle[0] = 128
number = {"x86_64": (303, 304), "aarch64": (264, 265)}[os.uname().machine]
mount = ctypes.c_int()
one = libc.syscall(number[0], -100, b"/usr", handle, ctypes.byref(mount), 0)
two = libc.syscall(number[1], os.open("/", os.O_RDONLY), handle, os.O_RDONLY)
print("blocked" if (one, two) == (-1, -1) else "BREACH")
""",
        blocked="ok: blocked",
    ),
]
