"""A dispatcher: takes calls from the queue and starts a supervisor for each, as many at a time as it has places."""

import os
import select
import signal
import socket
import sys

from . import namespaces
from .supervisor import supervise

#: Limit on the open files of the server's processes, set by `main`: every descriptor is below it.
MAX_OPEN_FILES = 4096


def dispatch(queue, places, fence):
    """Serves `queue`, which all dispatchers share, until its other end closes: a message brings a call's connection.

    Args:
        places: how many calls run at a time; more wait in the queue.
        fence: a `Fenced` or a `Plain`.
    """
    queue.setblocking(False)
    poll = select.poll()
    pidfds: dict[int, int] = {}
    while True:
        # While every place is taken, other dispatchers get the calls.
        poll.register(queue, select.POLLIN if len(pidfds) < places else 0)
        for fd, _ in poll.poll():
            if fd in pidfds:
                os.waitpid(pidfds.pop(fd), 0)
                poll.unregister(fd)
                os.close(fd)
            elif not accept(queue, fence, poll, pidfds):
                return


def accept(queue, fence, poll, pidfds):
    """Takes one call from the queue and starts it. Returns False if there will be no more calls."""
    try:
        message, fds, _, _ = socket.recv_fds(queue, 1, 1)
    except BlockingIOError:  # another dispatcher was quicker
        return True
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


def keep_open(fds, end=MAX_OPEN_FILES):
    """Closes every file below `end` but `fds`."""
    first = 0
    for fd in [*sorted(fds), end]:
        if first < fd:  # an empty range would close all
            os.closerange(first, fd)
        first = fd + 1


def start_dispatcher(queue, places, fence):
    """Forks a dispatcher that ends with its parent. Returns its process id."""
    pid = os.fork()
    if pid == 0:
        try:
            namespaces.die_with_parent()
            keep_open({0, 1, 2, queue.fileno(), *fence.files})
            dispatch(queue, places, fence)
        finally:
            os._exit(1)
    return pid
