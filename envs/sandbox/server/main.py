"""The first process of the server: imports what the calls need, and starts a supervisor for each call.

It says "ready" through the queue when calls can be made, or otherwise why not. It ends, together with all its
descendants, when the other end of the queue closes or the process that started it has ended.
"""

import contextlib
import gc
import json
import os
import resource
import select
import signal
import site
import socket
import sys
import tempfile

from . import kernel
from .call import STARTED, supervise
from .fence import Fenced, Plain

#: Seconds that `setup` may take.
_SETUP_TIMEOUT_S = 120
_SELF_TEST = {"code": "1", "history": [], "timeout_s": 60.0, "memory_mb": 64, "disk_mb": 1, "max_output_bytes": 100}
#: The server's processes open files with numbers below the first limit only; at its start a process may have been
#: given files up to the second.
_MAX_OPEN_FILES, _MANY_FILES = 4096, 1 << 20


def main(config):
    """Runs the server.

    Args:
        config: {"setup": code, "site_packages": folders, "places": calls at a time (more wait in the queue), "queue",
            "owner", "proc": open files (the socket that brings the calls, the pidfd of the process that started this
            one, /proc), "fenced": bool, "unprivileged_id": user and group to become, or None, "folder": a fenced call's
            own folder, or the one below which unfenced calls have theirs}.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    take_files(config)
    become(config["unprivileged_id"])
    sys.path += config["site_packages"]
    tempfile.tempdir = config["folder"]
    warm_up(config["setup"])
    queue = socket.socket(fileno=config["queue"])
    try:
        memory_in_use = settle_memory(config["proc"])
        fence = (Fenced if config["fenced"] else Plain)(config["proc"], config["folder"], memory_in_use)
        self_test(fence)
    except OSError as error:
        queue.send(str(error).encode())
        sys.exit(1)
    socket.send_fds(queue, [b"ready"], [os.pidfd_open(1)] if config["fenced"] else [])
    try:
        serve(queue, config["owner"], config["places"], fence)
    finally:
        fence.end()


def take_files(config):
    """Keeps open only the files that `config` names, below _MAX_OPEN_FILES, whatever their numbers were outside."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    every = _MANY_FILES if hard == resource.RLIM_INFINITY else min(hard, _MANY_FILES)
    limit = min(_MAX_OPEN_FILES, every)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))
    for key in ("queue", "owner", "proc"):
        config[key] = os.dup(config[key])
    keep_open({0, 1, 2, *(config[key] for key in ("queue", "owner", "proc"))}, every)


def become(unprivileged_id):
    """Gives up root: limits on the number of processes do not hold for it."""
    if unprivileged_id is not None:
        os.setgroups([])
        os.setresgid(*[unprivileged_id] * 3)
        os.setresuid(*[unprivileged_id] * 3)
        kernel.set_dumpable(True)


def warm_up(setup):
    """Imports and runs what is slow at its first use. Calls begin with equal seeds, so that sessions are repeatable."""
    site.setquit()
    site.sethelper()
    signal.alarm(_SETUP_TIMEOUT_S)
    exec(setup, {"__name__": "setup"})
    signal.alarm(0)
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed(0)


def settle_memory(proc):
    """Makes this process's memory cheap to fork. Returns its size: bytes of address space.

    Args:
        proc: an open /proc.
    """
    gc.collect()
    gc.freeze()
    with open(os.open("self/statm", os.O_RDONLY, dir_fd=proc), encoding="ascii") as statm:
        return int(statm.read().split()[0]) * resource.getpagesize()


def self_test(fence):
    """Makes one call, so that denied rights show at the start.

    Raises:
        OSError: the call was not possible.
    """
    ours, theirs = socket.socketpair()
    with ours, theirs:
        pid = start_call(theirs, fence)
        theirs.close()
        ours.sendall(json.dumps(_SELF_TEST).encode())
        ours.shutdown(socket.SHUT_WR)
        reply = b""
        while chunk := ours.recv(1 << 16):
            reply += chunk
        os.waitpid(pid, 0)
    if not reply.startswith(STARTED + b"{"):
        raise OSError("the supervisor of a first call failed")
    result = json.loads(reply.removeprefix(STARTED))
    if result != {"status": "ok", "output": "1\n"}:
        raise OSError(f"a first call came to {result}")


def serve(queue, owner, places, fence):
    """Starts a supervisor for each call that `queue` brings, as many at a time as there are slots.

    Never reads a byte of what a call's connection carries.
    """
    queue.setblocking(False)
    poll = select.poll()
    poll.register(owner, select.POLLIN)
    pidfds: dict[int, int] = {}
    while True:
        # While every slot is taken, only the end of the queue is reported.
        poll.register(queue, select.POLLIN if len(pidfds) < places else 0)
        for fd, _ in poll.poll():
            if fd in pidfds:
                os.waitpid(pidfds.pop(fd), 0)
                poll.unregister(fd)
                os.close(fd)
            elif fd == owner or not accept(queue, fence, poll, pidfds):
                return


def accept(queue, fence, poll, pidfds):
    """Takes one call from the queue and starts it. Returns False if there will be no more calls."""
    try:
        message, fds, _, _ = socket.recv_fds(queue, 1, 1)
    except ConnectionError:
        return False
    for fd in fds:
        with socket.socket(fileno=fd) as connection:
            try:
                pid = start_call(connection, fence)
            except OSError as error:
                print(f"sandbox: no process for a call: {error}", file=sys.stderr, flush=True)
                continue
        pidfd = os.pidfd_open(pid)
        pidfds[pidfd] = pid
        poll.register(pidfd, select.POLLIN)
    return bool(message)


def start_call(connection, fence):
    """Forks the call's supervisor, with no open file but `connection` and what the fence needs. Returns its id."""
    pid = fence.fork()
    if pid == 0:
        code = 1
        try:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            keep_open({0, 1, 2, connection.fileno(), *fence.files})
            supervise(connection, fence)
            code = 0
        except BaseException as error:
            print(f"sandbox: a call's supervisor failed: {error!r}", file=sys.stderr, flush=True)
        finally:
            os._exit(code)
    return pid


def keep_open(fds, end=_MAX_OPEN_FILES):
    """Closes every file below `end` but `fds`."""
    first = 0
    for fd in [*sorted(fds), end]:
        if first < fd:  # an empty range would close all
            os.closerange(first, fd)
        first = fd + 1


def run():
    """The entry: the configuration is the only argument, as JSON."""
    with contextlib.suppress(KeyboardInterrupt):
        main(json.loads(sys.argv[1]))
