"""Program of the worker process: runs pieces of Python, each in a forked child with limits.

Started by `worker.WorkerProcess` as `python worker_main.py <socket path> <setup code>`; never imported. It needs Linux
and the standard library only, so that it starts in some 30 ms. A client connects to the socket, sends one JSON request
{"code", "timeout_s", "memory_mb", "max_output_bytes"}, closes its sending side, and reads one JSON reply
{"status", "output"}. The setup code runs once: what it imports and warms up, a child has at no cost. Its variables are
not visible to a child.

The worker never waits for a child: one loop accepts requests, collects output and kills what is overdue. It exits when
its standard input closes, which is when the process that started it ends.
"""

import ast
import contextlib
import json
import os
import resource
import selectors
import shutil
import signal
import socket
import sys
import tempfile
import time
import traceback

MAX_FILE_BYTES = 16 << 20
MAX_OPEN_FILES = 64


class Job:
    """One request, from its connection to its reply."""

    def __init__(self, connection):
        self.connection = connection
        self.request = bytearray()
        self.output = bytearray()
        self.pid = self.pipe = self.deadline = self.folder = None
        self.limits = {}


class Worker:
    """The loop of the worker process."""

    def __init__(self, listener, memory_in_use):
        self.selector = selectors.DefaultSelector()
        self.listener = listener
        self.memory_in_use = memory_in_use
        self.running = set()
        self.selector.register(listener, selectors.EVENT_READ, self.accept)
        self.selector.register(sys.stdin.fileno(), selectors.EVENT_READ, lambda: sys.exit(0))

    def serve(self):
        while True:
            deadline = min((job.deadline for job in self.running), default=None)
            timeout = None if deadline is None else max(0.0, deadline - time.monotonic())
            for key, _ in self.selector.select(timeout):
                key.data()
            now = time.monotonic()
            for job in [job for job in self.running if job.deadline <= now]:
                self.finish(job, "timeout")

    def accept(self):
        connection, _ = self.listener.accept()
        job = Job(connection)
        self.selector.register(connection, selectors.EVENT_READ, lambda: self.receive(job))

    def receive(self, job):
        chunk = job.connection.recv(1 << 16)
        job.request += chunk
        if not chunk:
            self.selector.unregister(job.connection)
            self.start(job) if job.request else job.connection.close()

    def start(self, job):
        try:
            job.limits = json.loads(job.request)
        except ValueError:  # the client gave up while it was sending
            job.connection.close()
            return
        job.folder = tempfile.mkdtemp(prefix="call-")
        job.pipe, write_end = os.pipe()
        job.pid = os.fork()
        if job.pid == 0:
            run_child(job.limits, write_end, job.folder, self.memory_in_use)
        os.close(write_end)
        job.deadline = time.monotonic() + job.limits["timeout_s"]
        self.running.add(job)
        self.selector.register(job.pipe, selectors.EVENT_READ, lambda: self.collect(job))

    def collect(self, job):
        chunk = os.read(job.pipe, 1 << 16)
        job.output += chunk
        if not chunk:
            self.finish(job, None)
        elif len(job.output) > job.limits["max_output_bytes"]:
            self.finish(job, "output")

    def finish(self, job, status):
        """Kills what is left of the child's process group and replies. `status` None: the child closed its output."""
        for kill, pid in ((os.killpg, job.pid), (os.kill, job.pid)):
            with contextlib.suppress(ProcessLookupError):
                kill(pid, signal.SIGKILL)
        _, wait_status = os.waitpid(job.pid, 0)
        if status is None:
            code = os.waitstatus_to_exitcode(wait_status)
            status = "ok" if code == 0 else "error" if code > 0 else f"signal {-code}"
        self.selector.unregister(job.pipe)
        os.close(job.pipe)
        self.running.discard(job)
        shutil.rmtree(job.folder, ignore_errors=True)
        output = job.output[: job.limits["max_output_bytes"]].decode("utf-8", "replace")
        job.connection.settimeout(1.0)
        with contextlib.suppress(OSError):  # the client may have given up
            job.connection.sendall(json.dumps({"status": status, "output": output}).encode())
        job.connection.close()


class Output:
    """Standard output that knows whether anything was written."""

    def __init__(self, stream):
        self.stream = stream
        self.used = False

    def write(self, text):
        self.used = self.used or bool(text)
        return self.stream.write(text)

    def __getattr__(self, name):
        return getattr(self.stream, name)


def run_child(limits, write_end, folder, memory_in_use):
    """Runs the code in this (forked) process and leaves it; never returns."""
    code = 1
    try:
        os.setsid()
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.dup2(write_end, 1)
        os.dup2(write_end, 2)
        os.closerange(3, max(4096, write_end + 1))
        os.chdir(folder)
        set_limits(limits, memory_in_use)
        sys.stdout = Output(os.fdopen(1, "w", encoding="utf-8", errors="replace", closefd=False))
        code = execute(limits["code"])
        sys.stdout.flush()
    except BaseException:
        code = 1
    finally:
        os._exit(code)


def set_limits(limits, memory_in_use):
    cpu_seconds = int(limits["timeout_s"]) + 2
    for what, value in (
        (resource.RLIMIT_AS, memory_in_use + (limits["memory_mb"] << 20)),
        (resource.RLIMIT_CPU, cpu_seconds),
        (resource.RLIMIT_FSIZE, MAX_FILE_BYTES),
        (resource.RLIMIT_NOFILE, MAX_OPEN_FILES),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(what, (value, value))


def execute(code):
    """Runs `code`; shows the value of a last expression if nothing was printed. Returns the exit code."""
    try:
        module = ast.parse(code, "<code>")
        last = module.body.pop() if module.body and isinstance(module.body[-1], ast.Expr) else None
        variables = {"__name__": "__main__"}
        exec(compile(module, "<code>", "exec"), variables)
        if last is not None:
            value = eval(compile(ast.Expression(last.value), "<code>", "eval"), variables)
            if value is not None and not sys.stdout.used:
                print(repr(value))
    except SystemExit as end:
        return 0 if end.code in (None, 0) else 1
    except BaseException as error:
        print(describe(error))
        return 1
    return 0


def describe(error):
    """One line: where in the code, the error's type, its message."""
    lines = [frame.lineno for frame in traceback.extract_tb(error.__traceback__) if frame.filename == "<code>"]
    line = error.lineno if isinstance(error, SyntaxError) else lines[-1] if lines else None
    message = (error.msg if isinstance(error, SyntaxError) else str(error)).strip()
    where = f"Line {line}: " if line else ""
    return f"{where}{type(error).__name__}{': ' if message else ''}{message}"


def address_space_bytes():
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def main():
    path, setup = sys.argv[1:]
    folder = os.path.dirname(path)
    tempfile.tempdir = folder
    exec(setup, {})
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(path)
    listener.listen(128)
    print("ready", flush=True)
    try:
        Worker(listener, address_space_bytes()).serve()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    main()
