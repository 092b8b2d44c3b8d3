"""System calls behind the fence that Python 3.11 has no function for: namespaces, mounts, rights."""

import ctypes
import os
import signal

#: A library whose calls keep the interpreter's lock, so that `fork` does not leave it to another thread.
_libc = ctypes.PyDLL(None, use_errno=True)

_CLONE_NEWNS, _CLONE_NEWIPC, _CLONE_NEWUSER, _CLONE_NEWPID = 0x20000, 0x8000000, 0x10000000, 0x20000000
_CLONE_NUMBER = {"x86_64": 56, "aarch64": 220}
_MS_NOSUID, _MS_NODEV = 2, 4
_PR_SET_DUMPABLE = 4
_CAPABILITY_VERSION_3 = 0x20080522
#: The user and group id of a call.
CALL_ID = 1000
#: Files and folders that a call may have.
_MAX_INODES = 4096


def check(result, what):
    """Returns the result of a system call; raises an OSError when it is -1."""
    if result == -1:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def syscall(number, *arguments):
    """A raw system call. All arguments are passed as whole machine words."""
    return _libc.syscall(ctypes.c_long(number), *(ctypes.c_void_p(argument) for argument in arguments))


def fork():
    """`os.fork` into new user, process, mount and IPC namespaces: the child is process 1 of its own."""
    flags = _CLONE_NEWUSER | _CLONE_NEWPID | _CLONE_NEWNS | _CLONE_NEWIPC | signal.SIGCHLD
    return check(syscall(_CLONE_NUMBER[os.uname().machine], flags, 0, 0, 0, 0), "namespaces for a call")


def become_call_user(proc, uid, gid):
    """Inside the namespaces of `fork`: gives this process's user the id CALL_ID; there is no other user.

    Args:
        proc: an open /proc that shows this process.
        uid, gid: its ids outside of the namespaces.
    """
    for name, value in (
        ("setgroups", "deny"),
        ("uid_map", f"{CALL_ID} {uid} 1"),
        ("gid_map", f"{CALL_ID} {gid} 1"),
        ("oom_score_adj", "1000"),  # where memory runs out, a call dies before anything else
    ):
        fd = os.open(f"self/{name}", os.O_WRONLY, dir_fd=proc)
        try:
            os.write(fd, value.encode())
        finally:
            os.close(fd)


def mount_folder(path, size_mb):
    """A private, empty folder at `path` that holds at most `size_mb` in all and disappears with the mount namespace."""
    options = f"size={size_mb}m,nr_inodes={_MAX_INODES},mode=0700".encode()
    done = _libc.mount(b"tmpfs", path.encode(), b"tmpfs", _MS_NOSUID | _MS_NODEV, options)
    check(done, f"a file system at {path}")


def drop_capabilities():
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0)
    none = (ctypes.c_uint32 * 6)()
    check(_libc.capset(header, none), "capset")


def set_dumpable(dumpable):
    """Whether other processes of the same user may look into this one (and its /proc files are the user's own)."""
    check(_libc.prctl(_PR_SET_DUMPABLE, int(dumpable), 0, 0, 0), "PR_SET_DUMPABLE")
