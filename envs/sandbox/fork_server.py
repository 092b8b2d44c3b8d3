"""The client of the server (`server/`) that runs Python code with limits: starts it, sends calls, replaces it."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import json
import os
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from rllib_arpo.envs.errors import BrokenToolError
from rllib_arpo.envs.sandbox import bubblewrap
from rllib_arpo.envs.sandbox.packages import DEFAULT, visible_files

#: Seconds beyond a call's own limit after which it counts as hung. They are many, since a machine may be busy.
GRACE_S = 10.0
#: Output beyond this many bytes ends a call.
MAX_OUTPUT_BYTES = 1 << 20
_MAX_INTERPRETERS = 16
_QUEUE_FULL_WAIT_S = 0.01
#: The first wait of a call whose server is dying, and the one that is too long (doubled every time).
_FIRST_WAIT_S, _LAST_WAIT_S = 0.02, 5.0
#: Seconds that a server may take to start (it runs its setup code).
START_TIMEOUT_S = 120.0
#: Calls that each dispatcher runs at a time. Further calls wait, which does not count towards their time limits.
PLACES = 8
_BOOT = "import sys; sys.path.insert(0, {folder!r}); from server.main import run; sys.path.pop(0); run()"


class CallStatus(StrEnum):
    """The outcome of a call."""

    OK = "ok"
    ERROR = "error"  # an exception, or a non-zero exit
    TIMEOUT = "timeout"
    OUTPUT = "output"  # too much
    SIGNAL = "signal"  # the call's process was killed
    REPLAY = "replay"  # the session could not be repeated
    WORKER = "worker"  # the call's supervisor died under it, twice


@dataclass(frozen=True, slots=True)
class WorkerReply:
    """The output and the outcome of a call; `signal` is the number of the signal that killed its process."""

    status: CallStatus
    output: str
    signal: int | None = None


class ForkServer:
    """A warm server that forks a process per call; restarted when it dies. Usable from any event loop and thread.

    Args:
        setup: code that the server runs once, at its start, to import and warm up what the calls need.
        fenced: whether it runs inside bubblewrap.
        interpreters: the number of dispatchers, which are copies of one interpreter; None: one for each CPU.
        packages: what is visible inside bubblewrap, see `packages.visible_files`.
    """

    def __init__(
        self,
        setup: str = "",
        fenced: bool = False,
        interpreters: int | None = None,
        packages: tuple[str, ...] = DEFAULT,
    ):
        self.setup = setup
        self.fenced = fenced
        self.packages = packages
        self.interpreters = interpreters or min(_MAX_INTERPRETERS, len(os.sched_getaffinity(0)))
        self._lock = threading.Lock()
        self._running: RunningServer | None = None
        #: The last time that a call began or ended, and the longest limit of a call, for which the queue may wait.
        self._progress, self._longest_s = 0.0, 0.0

    async def run(
        self, code: str, timeout_s: float, memory_mb: int = 512, disk_mb: int = 64, history: Sequence[str] = ()
    ) -> WorkerReply:
        """Runs `code` in a process of its own.

        A call is repeated once if its supervisor dies or its server hangs. One that its server dies without having
        begun waits for the next server, and kills one that does not end.

        Args:
            timeout_s: wall seconds from the time when the call gets a place; CPU seconds have about the same limit.
            memory_mb: address space beyond that of `setup`.
            disk_mb: for all of its files (without a fence: for each).
            history: code that runs first, without showing its output; each piece also has `timeout_s`.

        Raises:
            BrokenToolError: the server cannot be started.
        """
        request = {
            "code": code,
            "history": list(history),
            "timeout_s": timeout_s,
            "memory_mb": memory_mb,
            "disk_mb": disk_mb,
            "max_output_bytes": MAX_OUTPUT_BYTES,
        }
        payload = json.dumps(request).encode()
        limit_s = (1 + len(history)) * timeout_s + GRACE_S
        self._longest_s = max(self._longest_s, limit_s)
        num_lost, wait_s = 0, _FIRST_WAIT_S
        while num_lost < 2:
            if not self.alive:
                await asyncio.get_running_loop().run_in_executor(None, self.start)
            running = self._running
            assert running is not None
            try:
                reply = await self._call(running, payload, limit_s)
            except TimeoutError:
                return WorkerReply(CallStatus.TIMEOUT, "")
            except OSError:
                reply = None
            if reply:
                return _read_reply(reply)
            if reply is None:
                num_lost += 1
            elif wait_s < _LAST_WAIT_S:
                # The server is dying; it counts as alive until its first process has ended.
                await asyncio.sleep(wait_s)
                wait_s *= 2
            else:
                running.kill()
                num_lost, wait_s = num_lost + 1, _FIRST_WAIT_S
        return WorkerReply(CallStatus.WORKER, "")

    async def _call(self, running: RunningServer, payload: bytes, limit_s: float) -> bytes | None:
        """The reply of a call; None if it was lost, b"" if it did not begin."""
        ours, theirs = socket.socketpair()
        with theirs:
            reader, writer = await asyncio.open_unix_connection(sock=ours)
            try:
                try:
                    await _enqueue(running.queue, theirs)
                    theirs.close()
                    writer.write(payload)
                    writer.write_eof()
                    began = await self._begin(running, reader)
                except OSError:
                    return b""
                if not began:
                    return began
                async with asyncio.timeout(limit_s):
                    return await reader.read(-1) or None
            finally:
                self._progress = time.monotonic()
                writer.close()

    async def _begin(self, running: RunningServer, reader: asyncio.StreamReader) -> bytes | None:
        """Waits until the call has begun: while others begin and end, and at least as long as the longest may take.

        Returns b"" if the server dies first, and None if it hangs, for which it is killed.
        """
        waiting_since = time.monotonic()
        while True:
            quiet_until = max(waiting_since, self._progress) + self._longest_s
            if quiet_until <= time.monotonic():
                running.kill()
                return None
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(quiet_until - time.monotonic()):
                    began = await reader.read(1)
                    self._progress = time.monotonic()
                    return began

    @property
    def alive(self) -> bool:
        return self._running is not None and self._running.alive

    @property
    def pid(self) -> int | None:
        """The process from which all others of the server descend."""
        return self._running.process.pid if self._running else None

    def start(self) -> None:
        """Starts the server unless it is alive; blocks until it is ready."""
        with self._lock:
            if self.alive:
                return
            if self._running is not None:
                self._running.kill()
            self._running = launch(self.setup, self.fenced, self.interpreters, self.packages)

    def close(self) -> None:
        """Ends the server and every call in it; a later call starts it again."""
        with self._lock:
            if self._running is not None:
                self._running.kill()
                self._running = None


@functools.cache
def _shared(pid: int, setup: str, fenced: bool, interpreters: int | None, packages: tuple[str, ...]) -> ForkServer:
    server = ForkServer(setup, fenced, interpreters, packages)
    atexit.register(_close_own, server, pid)
    return server


def _close_own(server: ForkServer, pid: int) -> None:
    # A forked process that exits normally must not end its parent's server.
    if os.getpid() == pid:
        server.close()


def shared_server(
    setup: str = "", fenced: bool = False, interpreters: int | None = None, packages: tuple[str, ...] = DEFAULT
) -> ForkServer:
    """The server that everything in this process shares. A forked process does not use its parent's."""
    return _shared(os.getpid(), setup, fenced, interpreters, packages)


def _read_reply(reply: bytes) -> WorkerReply:
    """The supervisor's reply: {"status", "output"}, where the status of a killed process is "signal <number>"."""
    fields = json.loads(reply)
    status, _, number = fields["status"].partition(" ")
    return WorkerReply(CallStatus(status), fields["output"], int(number) if number else None)


async def _enqueue(queue: socket.socket, connection: socket.socket) -> None:
    while True:
        try:
            socket.send_fds(queue, [b"c"], [connection.fileno()], socket.MSG_DONTWAIT)
            return
        except BlockingIOError:
            await asyncio.sleep(_QUEUE_FULL_WAIT_S)


class RunningServer:
    """A started server.

    Attributes:
        process: the first process; inside the fence all others end when its process 1 does.
        queue: brings the server its calls, each an open connection.
    """

    def __init__(self, process: subprocess.Popen[bytes], queue: socket.socket, folder: str | None):
        self.process = process
        self.queue = queue
        self._folder = folder
        self._init: int | None = None
        self._lock = threading.Lock()

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def read_init(self, info: int) -> None:
        """Reads from `info` bubblewrap's report of process 1 inside the fence, and keeps a handle on that process."""
        report = b""
        while (chunk := os.read(info, 4096)) and not report.endswith(b"}\n"):
            report += chunk
        if report:
            with contextlib.suppress(ProcessLookupError):
                self._init = os.pidfd_open(json.loads(report)["child-pid"])

    def await_ready(self) -> None:
        """Blocks until calls can be made.

        Raises:
            BrokenToolError: calls cannot be made; the server has then ended.
        """
        output = self.process.stdout
        assert output is not None
        poll = select.poll()  # `select.select` cannot wait for files with large numbers
        poll.register(output, select.POLLIN)
        line = output.readline().decode() if poll.poll(1000 * START_TIMEOUT_S) else ""
        if line == "ready\n":
            return
        self.kill()
        reason = line.removeprefix("failed: ").strip() or f"exit code {self.process.returncode}"
        raise BrokenToolError(f"the Python server did not start: {reason}")

    def kill(self) -> None:
        """Ends all its processes; may be repeated."""
        with self._lock:
            self.queue.close()
            if self._init is not None:
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(self._init, signal.SIGKILL)
                os.close(self._init)
                self._init = None
            self.process.kill()
            self.process.wait()
            if self.process.stdout is not None:
                self.process.stdout.close()
            if self._folder is not None:
                shutil.rmtree(self._folder, ignore_errors=True)


def launch(setup: str, fenced: bool, interpreters: int, packages: tuple[str, ...]) -> RunningServer:
    """Starts a server and waits until it is ready; the arguments are those of `ForkServer`.

    Raises:
        SandboxError: the system does not permit the fence.
        BrokenToolError: the server did not start.
    """
    if fenced:
        bubblewrap.check_available()
    try:
        server = _start(setup, interpreters, visible_files(packages) if fenced else None)
    except OSError as error:
        raise BrokenToolError(f"the Python server did not start: {error}") from error
    server.await_ready()
    return server


def _start(setup: str, interpreters: int, packages: Mapping[str, str] | None) -> RunningServer:
    """Starts a server: inside bubblewrap, with these packages, or without a fence (None)."""
    with contextlib.ExitStack() as files:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        files.enter_context(theirs)
        on_failure = files.enter_context(contextlib.ExitStack())
        on_failure.enter_context(ours)
        config = {"setup": setup, "interpreters": interpreters, "places": PLACES, "fenced": packages is not None}
        config["queue"] = theirs.fileno()
        config["owner"] = _closing(files, os.pidfd_open(os.getpid()))
        config["proc"] = _closing(files, os.open("/proc", os.O_PATH | os.O_DIRECTORY))
        server = _start_plain(config, ours) if packages is None else _start_fenced(config, ours, files, packages)
        on_failure.pop_all()
        return server


def _start_fenced(
    config: dict[str, Any], queue: socket.socket, files: contextlib.ExitStack, packages: Mapping[str, str]
) -> RunningServer:
    root = os.geteuid() == 0
    config |= {"site_packages": [bubblewrap.PACKAGES_FOLDER], "folder": bubblewrap.CALL_FOLDER}
    config["unprivileged_id"] = bubblewrap.UNPRIVILEGED_ID if root else None
    options, fds = files.enter_context(bubblewrap.namespace_options())
    read_end, write_end = os.pipe()
    _closing(files, read_end)
    command = [str(bubblewrap.find_bwrap()), *options, "--info-fd", str(write_end)]
    command += [*bubblewrap.view_options(packages), "--", bubblewrap.interpreter(), "-S", "-s", "-P", "-B"]
    try:
        server = _popen(command, bubblewrap.SERVER_FOLDER, config, queue, None, (*fds, write_end))
    finally:
        os.close(write_end)
    try:
        server.read_init(read_end)
    except OSError:
        server.kill()
        raise
    return server


def _start_plain(config: dict[str, Any], queue: socket.socket) -> RunningServer:
    folder = tempfile.mkdtemp(prefix="python-")
    config |= {"site_packages": [], "folder": folder, "unprivileged_id": None}
    return _popen([sys.executable, "-s", "-P"], str(Path(__file__).parent), config, queue, folder, ())


def _popen(
    command: list[str],
    server_folder: str,
    config: dict[str, Any],
    queue: socket.socket,
    folder: str | None,
    fds: tuple[int, ...],
) -> RunningServer:
    process = subprocess.Popen(
        [*command, "-c", _BOOT.format(folder=server_folder), json.dumps(config)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        cwd="/",
        env=_environment(config["folder"]),
        pass_fds=(config["queue"], config["owner"], config["proc"], *fds),
        start_new_session=True,
    )
    return RunningServer(process, queue, folder)


def _closing(files: contextlib.ExitStack, fd: int) -> int:
    files.callback(os.close, fd)
    return fd


def _environment(folder: str) -> dict[str, str]:
    """A clean environment: no secrets of the caller's; a fixed hash seed so that equal code prints equal text."""
    return {
        "PATH": os.defpath,
        "HOME": folder,
        "LANG": "C.UTF-8",
        "TZ": "UTC",
        "MPLBACKEND": "Agg",
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
        "MALLOC_ARENA_MAX": "2",  # each arena takes 64 MiB of address space, which is limited
    }
