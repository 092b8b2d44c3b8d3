"""Runs a command as an ordinary user, in a mount namespace where that user may pass the folders above some paths.

`python as_user.py UID FOLDER,... -- command ...`, as root. An interpreter, a virtual environment or a checkout often
lies below a folder that only root may pass (/root). The files themselves are the same under the same names, and nobody
outside the namespace sees a difference.
"""

import ctypes
import os
import stat
import sys
from pathlib import Path

_CLONE_NEWNS, _MS_BIND, _MS_REC, _MS_PRIVATE = 0x20000, 4096, 16384, 1 << 18
_libc = ctypes.CDLL(None, use_errno=True)


def mount(source: str, target: str, kind: str, flags: int, options: str) -> None:
    if _libc.mount(source.encode(), target.encode(), kind.encode(), flags, options.encode()):
        number = ctypes.get_errno()
        raise OSError(number, f"mount of {source} on {target}: {os.strerror(number)}")


def first_closed(path: Path) -> Path | None:
    """The topmost folder above `path` that not everybody may pass."""
    for parent in reversed(path.parents):
        if not parent.stat().st_mode & stat.S_IXOTH:
            return parent
    return None


def open_ways(paths: list[Path]) -> None:
    """Puts an empty, passable folder over each closed one, with nothing in it but those of `paths` that lie below."""
    if _libc.unshare(_CLONE_NEWNS):
        raise OSError(ctypes.get_errno(), "no mount namespace")
    mount("none", "/", "", _MS_REC | _MS_PRIVATE, "")
    closed: dict[Path, list[tuple[Path, int]]] = {}
    for path in paths:
        if folder := first_closed(path):
            closed.setdefault(folder, []).append((path, os.open(path, os.O_PATH)))
    for folder, inside in closed.items():
        mount("tmpfs", str(folder), "tmpfs", 0, "mode=755")
        for path, fd in inside:
            path.mkdir(parents=True)
            mount(f"/proc/self/fd/{fd}", str(path), "", _MS_BIND | _MS_REC, "")
            os.close(fd)


def main() -> None:
    uid, folders, _, *command = sys.argv[1:]
    open_ways([Path(folder) for folder in folders.split(",")])
    os.setgroups([])
    os.setresgid(*[int(uid)] * 3)
    os.setresuid(*[int(uid)] * 3)
    os.execv(command[0], command)


if __name__ == "__main__":
    os.umask(0o022)
    main()
