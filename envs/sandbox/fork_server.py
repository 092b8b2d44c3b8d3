"""The client of the server (`server/`) that runs Python code with limits: starts it, sends calls, replaces it."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any

from rllib_arpo.envs.errors import BrokenToolError
from rllib_arpo.envs.sandbox import bubblewrap
from rllib_arpo.envs.sandbox.packages import DEFAULT, visible_files

#: A call counts as hung this many seconds after its own limit: many, since a machine may be busy.
GRACE_S = 10.0
#: Output beyond this many bytes ends a call.
MAX_OUTPUT_BYTES = 1 << 20
#: Megabytes of all files of a call together, which lie in memory (without a fence: of each).
DISK_MB = 64
_QUEUE_FULL_WAIT_S = 0.01
#: A call that did not begin waits first this long, then twice as long each time; a wait beyond the second is too long.
_FIRST_WAIT_S, _LAST_WAIT_S = 0.02, 5.0
#: Seconds that a server may take to start (it runs its setup code).
START_TIMEOUT_S = 120.0
#: Calls that a server runs at a time. Further calls wait, which does not count towards their time limits.
PLACES = 8 * min(16, len(os.sched_getaffinity(0)))
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
        packages: what is visible inside bubblewrap, see `packages.visible_files`.
    """

    def __init__(self, setup: str = "", fenced: bool = False, packages: tuple[str, ...] = DEFAULT):
        self.setup = setup
        self.fenced = fenced
        self.packages = packages
        self._lock = threading.Lock()
        self._running: RunningServer | None = None

    async def run(self, code: str, timeout_s: float, memory_mb: int = 512, history: Sequence[str] = ()) -> WorkerReply:
        """Runs `code` in a process of its own.

        If its supervisor dies, a call is repeated once. If it cannot begin, because the server dies or the machine is
        short of processes, it waits for some seconds.

        Args:
            timeout_s: wall seconds from the moment when the call gets a slot; CPU seconds have about the same limit.
            memory_mb: address space beyond what `setup` uses.
            history: code that runs first, without showing its output; each piece also has `timeout_s`.

        Raises:
            BrokenToolError: the server cannot be started.
        """
        request = {
            "code": code,
            "history": list(history),
            "timeout_s": timeout_s,
            "memory_mb": memory_mb,
            "disk_mb": DISK_MB,
            "max_output_bytes": MAX_OUTPUT_BYTES,
        }
        payload = json.dumps(request).encode()
        limit_s = (1 + len(history)) * timeout_s + GRACE_S
        num_lost, wait_s = 0, _FIRST_WAIT_S
        while num_lost < 2:
            if not self.alive:
                await asyncio.get_running_loop().run_in_executor(None, self.start)
            running = self._running
            assert running is not None
            try:
                reply = await _call(running.queue, payload, limit_s)
            except TimeoutError:
                return WorkerReply(CallStatus.TIMEOUT, "")
            except OSError:
                reply = None
            if reply:
                return _read_reply(reply)
            if reply is None or wait_s > _LAST_WAIT_S:
                num_lost += 1
            else:
                await asyncio.sleep(wait_s)
                wait_s *= 2
        return WorkerReply(CallStatus.WORKER, "")

    @property
    def alive(self) -> bool:
        return self._running is not None and self._running.process.poll() is None

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
            self._running = launch(self.setup, self.fenced, self.packages)

    def close(self) -> None:
        """Ends the server and every call in it; a later call starts it again."""
        with self._lock:
            if self._running is not None:
                self._running.kill()
                self._running = None


@functools.cache
def _shared(pid: int, setup: str, fenced: bool, packages: tuple[str, ...]) -> ForkServer:
    server = ForkServer(setup, fenced, packages)
    atexit.register(_close_own, server, pid)
    return server


def _close_own(server: ForkServer, pid: int) -> None:
    # A forked process that exits normally must not end its parent's server.
    if os.getpid() == pid:
        server.close()


def shared_server(setup: str = "", fenced: bool = False, packages: tuple[str, ...] = DEFAULT) -> ForkServer:
    """The server that everything in this process shares. A forked process does not use its parent's."""
    return _shared(os.getpid(), setup, fenced, packages)


async def _call(queue: socket.socket, payload: bytes, limit_s: float) -> bytes | None:
    """The reply of a call; None if it was lost, b"" if it did not begin.

    Raises:
        TimeoutError: it began, and there is no reply after `limit_s` seconds.
    """
    ours, theirs = socket.socketpair()
    with theirs:
        reader, writer = await asyncio.open_unix_connection(sock=ours)
        try:
            try:
                await _enqueue(queue, theirs)
                theirs.close()
                writer.write(payload)
                writer.write_eof()
                began = await reader.read(1)
            except OSError:
                began = b""
            if not began:
                return began
            async with asyncio.timeout(limit_s):
                return await reader.read(-1) or None
        finally:
            writer.close()


async def _enqueue(queue: socket.socket, connection: socket.socket) -> None:
    while True:
        try:
            socket.send_fds(queue, [b"c"], [connection.fileno()])
            return
        except BlockingIOError:
            await asyncio.sleep(_QUEUE_FULL_WAIT_S)


def _read_reply(reply: bytes) -> WorkerReply:
    """The supervisor's reply: {"status", "output"}, where the status of a killed process is "signal <number>"."""
    fields = json.loads(reply)
    status, _, number = fields["status"].partition(" ")
    return WorkerReply(CallStatus(status), fields["output"], int(number) if number else None)


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
        self._init: list[int] = []
        self._lock = threading.Lock()

    def await_ready(self) -> None:
        """Blocks until calls can be made.

        Raises:
            BrokenToolError: calls cannot be made; the server has then ended.
        """
        self.queue.settimeout(START_TIMEOUT_S)
        message = b""
        with contextlib.suppress(OSError):
            message, self._init, _, _ = socket.recv_fds(self.queue, 4096, 1)
        if message != b"ready":
            self.kill()
            reason = message.decode() or f"exit code {self.process.returncode}"
            raise BrokenToolError(f"the Python server did not start: {reason}")
        self.queue.setblocking(False)

    def kill(self) -> None:
        """Ends all its processes; may be repeated."""
        with self._lock:
            self.queue.close()
            while self._init:
                process_1 = self._init.pop()
                with contextlib.suppress(ProcessLookupError):
                    signal.pidfd_send_signal(process_1, signal.SIGKILL)
                os.close(process_1)
            self.process.kill()
            self.process.wait()
            if self._folder is not None:
                shutil.rmtree(self._folder, ignore_errors=True)


def launch(setup: str, fenced: bool, packages: tuple[str, ...]) -> RunningServer:
    """Starts a server and waits until it is ready; for the arguments see `ForkServer`.

    Raises:
        SandboxError: the system does not permit the fence.
        BrokenToolError: the server did not start.
    """
    if fenced:
        bubblewrap.check_available()
    try:
        server = _start(setup, visible_files(packages) if fenced else None)
    except OSError as error:
        raise BrokenToolError(f"the Python server did not start: {error}") from error
    server.await_ready()
    return server


def _start(setup: str, packages: Mapping[str, str] | None) -> RunningServer:
    """Starts a server: inside bubblewrap, with these packages, or without a fence (None)."""
    with contextlib.ExitStack() as on_failure, contextlib.ExitStack() as files:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        on_failure.enter_context(ours)
        files.enter_context(theirs)
        files.callback(os.close, owner := os.pidfd_open(os.getpid()))
        files.callback(os.close, proc := os.open("/proc", os.O_PATH | os.O_DIRECTORY))
        config: dict[str, Any] = {"queue": theirs.fileno(), "owner": owner, "proc": proc}
        config |= {"setup": setup, "places": PLACES, "fenced": packages is not None}
        config |= {"site_packages": [], "unprivileged_id": None}
        folder: str | None = None
        fds: tuple[int, ...] = ()
        if packages is None:
            folder = config["folder"] = tempfile.mkdtemp(prefix="python-")
            on_failure.callback(shutil.rmtree, folder)
            command, server_folder = [sys.executable, "-s", "-P"], str(Path(__file__).parent)
        else:
            config |= {"site_packages": [bubblewrap.PACKAGES_FOLDER], "folder": bubblewrap.CALL_FOLDER}
            if os.geteuid() == 0:
                config["unprivileged_id"] = bubblewrap.UNPRIVILEGED_ID
            options, fds = files.enter_context(bubblewrap.namespace_options())
            command = [str(bubblewrap.find_bwrap()), *options, *bubblewrap.view_options(packages)]
            command += ["--", bubblewrap.interpreter(), "-S", "-s", "-P", "-B"]
            server_folder = bubblewrap.SERVER_FOLDER
        process = subprocess.Popen(
            [*command, "-c", _BOOT.format(folder=server_folder), json.dumps(config)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            cwd="/",
            env=_environment(config["folder"]),
            pass_fds=(theirs.fileno(), owner, proc, *fds),
            start_new_session=True,
        )
        on_failure.pop_all()
        return RunningServer(process, ours, folder)


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
