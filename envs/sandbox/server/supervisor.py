"""The supervisor of one call: enforces its limits, collects its output, replies, and ends all its processes."""

import contextlib
import json
import math
import os
import select
import signal
import time

from .program import REPLAYED, run_program

#: The supervisor sends this before the reply, when the call starts; until then the call waited for a place.
STARTED = b"+"
_CHUNK = 1 << 16
_REQUEST_TIMEOUT_S, _REPLY_TIMEOUT_S = 60.0, 10.0


def supervise(connection, fence):
    """Serves the one request of `connection`: JSON until the end of the stream, {"code", "history", "timeout_s",
    "memory_mb", "disk_mb", "max_output_bytes"}; the reply is `STARTED`, then {"status", "output"} as JSON."""
    try:
        connection.settimeout(_REQUEST_TIMEOUT_S)
        data = receive(connection)
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


def receive(connection):
    data = bytearray()
    while chunk := connection.recv(_CHUNK):
        data += chunk
    return data


class RunningCall:
    """One request while it runs. `output`: its output so far, at most `max_output_bytes`."""

    def __init__(self, request, fence):
        self.request = request
        self.fence = fence
        self.output = bytearray()
        self.truncated = False
        self.replayed = not request["history"]
        runs = 1 + len(request["history"])
        self.cpu_limit_s = math.ceil(runs * request["timeout_s"]) + 1
        self.wall_limit_s = runs * request["timeout_s"]

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
        code, usage = self.end(pid)
        self.read(out)
        self.read_ready(ready)
        self.fence.leave(folder)
        if status is None:
            status = self.status_of(code, usage.ru_utime + usage.ru_stime)
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
            self.replayed = self.replayed or os.read(ready, 1) == REPLAYED

    def end(self, pid):
        """Kills the program and all its descendants. Returns its exit code (negative: a signal) and its usage."""
        self.fence.kill(pid)
        _, wait_status, usage = os.wait4(pid, 0)
        return os.waitstatus_to_exitcode(wait_status), usage

    def status_of(self, code, cpu_s):
        if code == -signal.SIGKILL and cpu_s >= self.cpu_limit_s - 1:
            return "timeout"
        if not self.replayed:
            return "replay"
        return "ok" if code == 0 else "error" if code > 0 else f"signal {-code}"
