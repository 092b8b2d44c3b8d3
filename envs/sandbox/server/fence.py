"""The fences around a call: `Fenced` inside bubblewrap, `Plain` without any fence. `main` makes one of them once."""

import contextlib
import os
import resource
import shutil
import signal
import tempfile

from . import kernel, seccomp

MAX_THREADS, _MAX_PENDING_SIGNALS = 32, 128
#: Without a fence only each file of a call has a limit, not all of them together.
_MAX_FILE_BYTES = 16 << 20


class Fenced:
    """Every call has its own user, process, mount and IPC namespace, and a seccomp filter.

    Attributes:
        proc: an open /proc that shows this process; calls have none.
        folder: the only place that a call can write to (it is also its /dev/shm).
        memory_in_use: bytes of address space that a program has before its code runs.
        files: open files that a supervisor keeps.
    """

    def __init__(self, proc, folder, memory_in_use):
        self.proc = proc
        self.folder = folder
        self.files = (proc,)
        self.ids = (os.getuid(), os.getgid())
        self.filter = seccomp.program()
        self.memory_in_use = memory_in_use

    def fork(self):
        return kernel.fork()

    def enter(self, disk_mb):
        """In the supervisor, process 1 of the new namespaces. Returns the call's folder, empty, `disk_mb` in all."""
        kernel.become_call_user(self.proc, *self.ids)
        kernel.mount_folder(self.folder, disk_mb)
        kernel.set_dumpable(False)
        kernel.drop_capabilities()
        return self.folder

    def limits(self, disk_mb):
        """The program's resource limits besides time, memory and open files."""
        return {
            resource.RLIMIT_FSIZE: disk_mb << 20,
            resource.RLIMIT_NPROC: MAX_THREADS + 2,  # the supervisor and the program itself
            resource.RLIMIT_SIGPENDING: _MAX_PENDING_SIGNALS,
            resource.RLIMIT_MEMLOCK: 0,
            resource.RLIMIT_MSGQUEUE: 0,
        }

    def confine(self):
        """In the program, before any code runs: allows only the listed system calls."""
        seccomp.install(self.filter)

    def kill(self, pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(-1, signal.SIGKILL)  # all other processes of this process namespace

    def leave(self, folder):
        """Does nothing: the folder disappears with the mount namespace."""

    def end(self):
        """In `main`, at its end."""
        self.kill(None)


class Plain:
    """A folder, below `folder`, and a process group for every call; they stop only accidents."""

    files = ()

    def __init__(self, proc, folder, memory_in_use):
        self.folder = folder
        self.memory_in_use = memory_in_use

    def fork(self):
        return os.fork()

    def enter(self, disk_mb):
        return tempfile.mkdtemp(prefix="call-", dir=self.folder)

    def limits(self, disk_mb):
        return {resource.RLIMIT_FSIZE: min(disk_mb << 20, _MAX_FILE_BYTES)}

    def confine(self):
        pass

    def kill(self, pid):
        for kill in (os.killpg, os.kill):
            with contextlib.suppress(ProcessLookupError):
                kill(pid, signal.SIGKILL)

    def leave(self, folder):
        shutil.rmtree(folder, ignore_errors=True)

    def end(self):
        """Removes the folder; the calls end when their clients disappear."""
        shutil.rmtree(self.folder, ignore_errors=True)
