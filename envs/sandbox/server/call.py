"""One call: its supervisor enforces the limits, collects the output, replies, and ends the program that it forks."""

import contextlib
import json
import math
import os
import random
import resource
import select
import signal
import sys
import tempfile
import time
from pathlib import Path

from .execute import execute, new_variables, replay

#: The supervisor sends this before the reply, when the call starts; until then the call waited for a place.
STARTED = b"+"
#: The program writes this to the supervisor when it has repeated the earlier calls of the session.
_REPLAYED = b"r"
_CHUNK = 1 << 16
_REQUEST_TIMEOUT_S, _REPLY_TIMEOUT_S = 60.0, 10.0
_MAX_OPEN_FILES = 64
#: The list is fixed, since a walk through all modules in every call would cost a millisecond of page faults.
_SERVER_MODULES = (__package__, *(f"{__package__}.{Path(file).stem}" for file in os.listdir(Path(__file__).parent)))


def supervise(connection, fence):
    """Serves the one request of `connection`: JSON until the end of the stream, {"code", "history", "timeout_s",
    "memory_mb", "disk_mb", "max_output_bytes"}; the reply is `STARTED`, then {"status", "output"} as JSON."""
    try:
        connection.settimeout(_REQUEST_TIMEOUT_S)
        data = bytearray()
        while chunk := connection.recv(_CHUNK):
            data += chunk
        connection.sendall(STARTED)
        call = RunningCall(json.loads(data), fence)
    except (ConnectionError, TimeoutError, json.JSONDecodeError):  # the client gave up while it was sending
        return
    status = call.run(connection)
    if status is not None:
        reply = {"status": status, "output": call.output.decode("utf-8", "replace")}
        connection.settimeout(_REPLY_TIMEOUT_S)
        with contextlib.suppress(OSError):  # the client may have given up
            connection.sendall(json.dumps(reply).encode())


class RunningCall:
    """One request while it runs. `output`: its output so far, at most `max_output_bytes`."""

    def __init__(self, request, fence):
        self.request = request
        self.fence = fence
        self.output = bytearray()
        self.truncated = False
        self.replayed = not request["history"]
        self.wall_limit_s = (1 + len(request["history"])) * request["timeout_s"]
        self.cpu_limit_s = math.ceil(self.wall_limit_s) + 1

    def run(self, connection):
        """Runs the program to its end. Returns the status of the reply; None if the client no longer waits for it."""
        folder = self.fence.enter(self.request["disk_mb"])
        out, out_end = os.pipe()
        ready, ready_end = os.pipe()
        pid = os.fork()
        if pid == 0:
            run_program(self.request, out_end, ready_end, folder, self.cpu_limit_s, self.fence)
        os.close(out_end)
        os.close(ready_end)
        os.set_blocking(out, False)
        os.set_blocking(ready, False)
        status = self.watch(connection, pid, out, ready)
        self.fence.kill(pid)
        _, wait_status, usage = os.wait4(pid, 0)
        self.read(out)
        self.read_ready(ready)
        self.fence.leave(folder)
        if status is None:
            status = self.status_of(os.waitstatus_to_exitcode(wait_status), usage.ru_utime + usage.ru_stime)
        return None if status == "abandoned" else "output" if self.truncated else status

    def watch(self, connection, pid, out, ready):
        """Waits for the program's end (None), its time limit or too much output, or until the client is gone.

        On `ready` the program reports that it has repeated the session; from then on the new call's own limit holds. A
        message there can only bring the end nearer.
        """
        pidfd = os.pidfd_open(pid)
        poll = select.poll()
        for fd in (out, pidfd, ready):
            poll.register(fd, select.POLLIN)
        poll.register(connection, 0)  # reports only that the connection is closed
        deadline = time.monotonic() + self.wall_limit_s
        while (left := deadline - time.monotonic()) > 0:
            for fd, _ in poll.poll(math.ceil(1000 * left)):
                if fd == pidfd:
                    return None
                if fd == connection.fileno():
                    return "abandoned"
                if fd == ready:
                    poll.unregister(ready)
                    self.read_ready(ready)
                    deadline = min(deadline, time.monotonic() + self.request["timeout_s"])
                elif not self.read(out):
                    poll.unregister(out)
                if self.truncated:
                    return "output"
        return "timeout"

    def read(self, out):
        """Reads the contents of the pipe. Returns False if the program has closed it."""
        room = self.request["max_output_bytes"]
        with contextlib.suppress(BlockingIOError):
            while not self.truncated:
                chunk = os.read(out, _CHUNK)
                if not chunk:
                    return False
                self.output += chunk
                self.truncated = len(self.output) > room
        del self.output[room:]
        return True

    def read_ready(self, ready):
        with contextlib.suppress(BlockingIOError):
            self.replayed = self.replayed or os.read(ready, 1) == _REPLAYED

    def status_of(self, code, cpu_s):
        """The status of a program that ended by itself: `code` is its exit code (negative: a signal)."""
        if code == -signal.SIGKILL and cpu_s >= self.cpu_limit_s - 1:
            return "timeout"
        if not self.replayed:
            return "replay"
        return "ok" if code == 0 else "error" if code > 0 else f"signal {-code}"


def run_program(request, output, ready, folder, cpu_limit_s, fence):
    """Runs the request's code in this (forked) process and leaves it; never returns.

    Args:
        output, ready: the pipes to the supervisor.
        folder: the call's private folder.
    """
    code = 1
    try:
        arrange_files(output, ready)
        os.chdir(folder)
        tempfile.tempdir = os.environ["HOME"] = os.environ["TMPDIR"] = folder
        signal.signal(signal.SIGINT, signal.default_int_handler)
        set_limits(request, cpu_limit_s, fence)
        fence.confine()
        sys.stdout = os.fdopen(1, "w", 1, encoding="utf-8", errors="replace", closefd=False)
        random.seed(0)  # every fork draws a new seed
        for name in _SERVER_MODULES:  # the code must not find them by name
            sys.modules.pop(name, None)
        variables = new_variables()
        if replay(request["history"], variables):
            os.write(3, _REPLAYED)
            os.close(3)
            code = execute(request["code"], variables)
            sys.stdout.flush()
    except BaseException as error:
        os.write(2, f"{error!r}\n".encode())
    finally:
        os._exit(code)


def arrange_files(output, ready):
    """Leaves only these files open: 0: /dev/null, 1 and 2: the output, 3: the pipe that reports the replay."""
    os.setsid()
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(output, 1)
    os.dup2(output, 2)
    os.dup2(ready, 3)
    os.closerange(4, resource.getrlimit(resource.RLIMIT_NOFILE)[0])


def set_limits(request, cpu_limit_s, fence):
    limits = {
        resource.RLIMIT_AS: fence.memory_in_use + (request["memory_mb"] << 20),
        resource.RLIMIT_CPU: cpu_limit_s,
        resource.RLIMIT_NOFILE: _MAX_OPEN_FILES,
        resource.RLIMIT_CORE: 0,
        **fence.limits(request["disk_mb"]),
    }
    for what, value in limits.items():
        _, hard = resource.getrlimit(what)
        value = value if hard == resource.RLIM_INFINITY else min(value, hard)
        resource.setrlimit(what, (value, value))
