"""The first process of the server: imports what the calls need, starts the dispatchers, keeps them alive.

It prints "ready" when calls can be made, or otherwise one line with the reason. It ends, together with all its
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
import time

from . import namespaces
from .dispatcher import MAX_OPEN_FILES, keep_open, start_call, start_dispatcher
from .fence import Fenced, Plain
from .supervisor import STARTED

#: Seconds that `setup` may take.
_SETUP_TIMEOUT_S = 120
_SELF_TEST = {"code": "1", "history": [], "timeout_s": 60.0, "memory_mb": 64, "disk_mb": 1, "max_output_bytes": 100}
#: No process has more open files than this.
_MANY_FILES = 1 << 20
#: A dispatcher that dies sooner than this many seconds after its start is replaced only then.
_MIN_LIFE_S = 0.2


def main(config):
    """Runs the server.

    Args:
        config: {"setup": code, "site_packages": folders, "interpreters": number of dispatchers, "places": calls at a
            time in each, "queue", "owner", "proc": open files (the socket that brings the calls, the pidfd of the
            process that started this one, /proc), "fenced": bool, "unprivileged_id": user and group to become, or
            None, "folder": a fenced call's own folder, or the one below which unfenced calls have theirs}.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    take_files(config)
    become(config["unprivileged_id"])
    sys.path += config["site_packages"]
    tempfile.tempdir = config["folder"]
    warm_up(config["setup"])
    try:
        memory_in_use = settle_memory(config["proc"])
        fence = (Fenced if config["fenced"] else Plain)(config["proc"], config["folder"], memory_in_use)
        self_test(fence)
    except OSError as error:
        print(f"failed: {error}", flush=True)
        sys.exit(1)
    queue = socket.socket(fileno=config["queue"])
    try:
        keep_dispatchers(config, queue, fence)
    finally:
        fence.end()


def take_files(config):
    """Keeps open only the files that `config` names, below MAX_OPEN_FILES, whatever their numbers were outside."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    every = _MANY_FILES if hard == resource.RLIM_INFINITY else min(hard, _MANY_FILES)
    limit = min(MAX_OPEN_FILES, every)
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
        namespaces.set_dumpable(True)


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


def keep_dispatchers(config, queue, fence):
    """Replaces dead dispatchers until there is no client left."""
    poll = select.poll()
    poll.register(queue, 0)  # tells when its other end closes
    poll.register(config["owner"], select.POLLIN)
    running: dict[int, tuple[int, float]] = {}
    ready = False
    while True:
        while len(running) < config["interpreters"]:
            pid = start_dispatcher(queue, config["places"], fence)
            pidfd = os.pidfd_open(pid)
            running[pidfd] = pid, time.monotonic()
            poll.register(pidfd, select.POLLIN)
        if not ready:
            print("ready", flush=True)
            ready = True
        for fd, _ in poll.poll():
            if fd not in running:
                return
            pid, begin = running.pop(fd)
            poll.unregister(fd)
            os.close(fd)
            os.waitpid(pid, 0)
            time.sleep(max(0.0, begin + _MIN_LIFE_S - time.monotonic()))


def run():
    """The entry: the configuration is the only argument, as JSON."""
    with contextlib.suppress(KeyboardInterrupt):
        main(json.loads(sys.argv[1]))
