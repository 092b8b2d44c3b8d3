"""Landlock: a call reads only visible files and writes only to its own folder, even if a mount would permit more.

Source: https://docs.kernel.org/userspace-api/landlock.html. If the kernel has no Landlock, or it is switched off,
`restrict` does nothing: then only the mounts protect (nothing else is visible, and everything but the call's folder is
read-only).
"""

import ctypes
import os

from .namespaces import check, syscall

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION, _PATH_BENEATH = 1, 1
_WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 1, 1 << 2, 1 << 3
_EXECUTE, _MAKE_CHAR, _MAKE_SOCK, _MAKE_BLOCK, _IOCTL_DEV = 1 << 0, 1 << 6, 1 << 9, 1 << 11, 1 << 15
#: ABI version -> how many of the rights on files it knows (the lowest bits).
_FILE_RIGHTS = {1: 13, 2: 14, 3: 15, 4: 15}
_LATEST_FILE_RIGHTS = 16
_TCP_BIND_AND_CONNECT = 0b11
_ABSTRACT_SOCKETS_AND_SIGNALS = 0b11


class _Ruleset(ctypes.Structure):
    _fields_ = (("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scoped", ctypes.c_uint64))


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = (("allowed", ctypes.c_uint64), ("folder", ctypes.c_int32))


def abi():
    """The version of Landlock that the kernel has; 0: none."""
    version = syscall(_CREATE_RULESET, 0, 0, _VERSION)
    return max(0, version)


def restrict(folder):
    """Restricts this process for good: all that is visible may be read, written only `folder` and /dev/null; no
    program is executed, no TCP port is used, no process outside is signalled. Needs PR_SET_NO_NEW_PRIVS."""
    version = abi()
    if version == 0:
        return
    rights = (1 << _FILE_RIGHTS.get(version, _LATEST_FILE_RIGHTS)) - 1
    rules = _Ruleset(rights, _TCP_BIND_AND_CONNECT, _ABSTRACT_SOCKETS_AND_SIGNALS)
    size = 8 if version < 4 else 16 if version < 6 else 24
    ruleset = check(syscall(_CREATE_RULESET, ctypes.addressof(rules), size, 0), "landlock_create_ruleset")
    own = rights & ~(_EXECUTE | _MAKE_CHAR | _MAKE_SOCK | _MAKE_BLOCK | _IOCTL_DEV)
    _allow(ruleset, "/", _READ_FILE | _READ_DIR)
    _allow(ruleset, folder, own)
    _allow(ruleset, os.devnull, _WRITE_FILE | _READ_FILE)
    check(syscall(_RESTRICT_SELF, ruleset, 0), "landlock_restrict_self")
    os.close(ruleset)


def _allow(ruleset, path, rights):
    fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    rule = _Beneath(rights, fd)
    try:
        check(syscall(_ADD_RULE, ruleset, _PATH_BENEATH, ctypes.addressof(rule), 0), "landlock_add_rule")
    finally:
        os.close(fd)
