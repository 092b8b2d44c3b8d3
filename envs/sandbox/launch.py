"""Starting and ending the server (`server/`), inside bubblewrap or not."""

from __future__ import annotations

import contextlib
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
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rllib_arpo.envs.errors import BrokenToolError
from rllib_arpo.envs.sandbox import bubblewrap
from rllib_arpo.envs.sandbox.packages import shown

#: Seconds that a server may take to start (it runs its setup code).
START_TIMEOUT_S = 120.0
#: Calls that each dispatcher runs at a time. Further calls wait, which does not count towards their time limits.
PLACES = 8
_BOOT = "import sys; sys.path.insert(0, {folder!r}); from server.main import run; sys.path.pop(0); run()"


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
        told = b""
        while (chunk := os.read(info, 4096)) and not told.endswith(b"}\n"):
            told += chunk
        if told:
            with contextlib.suppress(ProcessLookupError):
                self._init = os.pidfd_open(json.loads(told)["child-pid"])

    def await_ready(self) -> None:
        """Blocks until calls can be made.

        Raises:
            BrokenToolError: calls cannot be made; the server has then ended.
        """
        output = self.process.stdout
        assert output is not None
        told = select.poll()  # `select.select` cannot wait for files with large numbers
        told.register(output, select.POLLIN)
        line = output.readline().decode() if told.poll(1000 * START_TIMEOUT_S) else ""
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
        server = _start(setup, interpreters, shown(packages) if fenced else None)
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
    told, tell = os.pipe()
    _closing(files, told)
    command = [
        *(str(bubblewrap.find_bwrap()), *options, "--info-fd", str(tell), *bubblewrap.view_options(packages), "--"),
        *(bubblewrap.interpreter(), "-S", "-s", "-P", "-B"),
    ]
    try:
        server = _popen(command, bubblewrap.SERVER_FOLDER, config, queue, None, (*fds, tell))
    finally:
        os.close(tell)
    try:
        server.read_init(told)
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
