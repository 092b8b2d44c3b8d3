"""Attacks by links, and over the network."""

from __future__ import annotations

from tests.envs.sandbox.attacks.attack import Attack

LINKS_AND_NETWORK = [
    Attack(
        name="symbolic_link_to_a_file",
        kind="links",
        code="""
import os

os.symlink("@secret_file@", "x")
print(open("x").read() and "BREACH")
""",
        blocked="error: .*FileNotFoundError.*",
        control=True,
    ),
    Attack(
        name="symbolic_link_to_a_folder",
        kind="links",
        code="""
import os

os.symlink("@folder@", "x")
open("x/attack", "w")
print("BREACH")
""",
        blocked="error: .*FileNotFoundError.*",
    ),
    Attack(
        name="link_that_cleaning_might_follow",
        kind="links",
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
        name="hard_link_to_the_library",
        kind="links",
        code="""
import os

os.link(os.__file__, "x")
open("x", "a")
print("BREACH")
""",
        blocked=r"error: .*(OSError: \[Errno 18\]|PermissionError).*",
    ),
    Attack(
        name="hard_link_to_a_file",
        kind="links",
        code="""
import os

os.link("@secret_file@", "x")
print("BREACH")
""",
        blocked="error: .*FileNotFoundError.*",
    ),
    Attack(
        name="folder_swapped_for_a_link",
        kind="links",
        code="""
import os

os.chdir("/")
for path in ("/tmp", "/dev/shm"):
    try:
        os.rename(path, path + "2")
        os.symlink("@folder@", path)
        print("BREACH")
    except OSError:
        pass
print("blocked")
""",
        blocked="ok: blocked",
    ),
    Attack(
        name="path_upwards",
        kind="links",
        code="""
print(open("/tmp/" + "../" * 30 + "@secret_file@".lstrip("/")).read() and "BREACH")
""",
        blocked="error: .*FileNotFoundError.*",
        control=True,
    ),
    Attack(
        name="links_of_open_files",
        kind="links",
        code="""
import os

for path in (
    "/proc/self/root", "/proc/1/root", "/proc/self/cwd", "/dev/fd", "/dev/stdin", "/proc/self/exe",
):
    if os.path.lexists(path):
        print("BREACH", path)
print("blocked")
""",
        blocked="ok: blocked",
        control=True,
    ),
    Attack(
        name="tcp_to_this_machine",
        kind="network",
        code="""
import socket

socket.create_connection(("127.0.0.1", @port@), 2)
print("BREACH")
""",
        blocked=r"error: .*PermissionError: \[Errno 1\].*",
        control=True,
    ),
    Attack(
        name="http",
        kind="network",
        code="""
import urllib.request

urllib.request.urlopen("http://127.0.0.1:@port@", timeout=2)
print("BREACH")
""",
        blocked="error: .*URLError.*not permitted.*",
    ),
    Attack(
        name="udp",
        kind="network",
        code="""
import socket

socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", ("127.0.0.1", @port@))
print("BREACH")
""",
        blocked=r"error: .*PermissionError: \[Errno 1\].*",
        control=True,
    ),
    Attack(
        name="names",
        kind="network",
        code="""
import socket

socket.gethostbyname("example.org")
print("BREACH")
""",
        blocked="error: .*(gaierror|OSError).*",
    ),
    Attack(
        name="listens",
        kind="network",
        code="""
import socket

server = socket.socket()
server.bind(("127.0.0.1", 0))
server.listen()
print("BREACH")
""",
        blocked=r"error: .*PermissionError: \[Errno 1\].*",
        control=True,
    ),
    Attack(
        name="socket_without_a_path",
        kind="network",
        code="""
import socket

socket.socket(socket.AF_UNIX).connect(chr(0) + "@abstract@")
print("BREACH")
""",
        blocked=r"error: .*PermissionError: \[Errno 1\].*",
        control=True,
    ),
    Attack(
        name="message_from_a_socket_pair",
        kind="network",
        code="""
import socket

one, two = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
one.sendto(b"x", chr(0) + "@abstract@-messages")
print("BREACH")
""",
        blocked="error: .*(ConnectionRefusedError|PermissionError|OSError).*",
        control=True,
    ),
    Attack(
        name="other_families",
        kind="network",
        code="""
import socket

for family in range(1, 46):
    for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW, socket.SOCK_SEQPACKET):
        try:
            socket.socket(family, kind, 0)
            print("BREACH", family, kind)
        except OSError:
            pass
        if family != socket.AF_UNIX:
            try:
                socket.socketpair(family, kind, 0)
                print("BREACH", family, kind)
            except OSError:
                pass
print("blocked")
""",
        blocked="ok: blocked",
    ),
    Attack(
        name="raw_system_calls",
        kind="network",
        code="""
import ctypes, os

libc = ctypes.CDLL(None, use_errno=True)
numbers = {"x86_64": (41, 42, 43, 49, 50, 288, 425), "aarch64": (198, 200, 201, 202, 203, 242, 425)}[
    os.uname().machine
]
made = [libc.syscall(number, 2, 1, 0, 0, 0, 0) for number in numbers]
print("blocked" if set(made) == {-1} else "BREACH")
""",
        blocked="ok: blocked",
    ),
]
