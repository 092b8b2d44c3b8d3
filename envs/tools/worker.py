"""The client of the worker process that runs Python code with limits (`worker_main.py`)."""

from __future__ import annotations

import asyncio
import atexit
import functools
import json
import os
import select
import shutil
import subprocess
import sys
import tempfile
import threading
from dataclasses import dataclass
from pathlib import Path

from rllib_arpo.envs.tools.tool import BrokenToolError

#: Seconds that a worker may take to start (it runs its setup code).
START_TIMEOUT_S = 60.0
#: Seconds beyond a call's own limit after which the worker counts as hung. Not short: a busy machine is no fault.
GRACE_S = 10.0
#: Output beyond this many bytes ends a call.
MAX_OUTPUT_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class WorkerReply:
    """`status` is "ok", "error" (an exception, or a non-zero exit), "timeout", "output" (too much), "signal <n>"
    (the call's process was killed) or "worker" (the worker died under the call, twice)."""

    status: str
    output: str


class WorkerProcess:
    """A warm process that forks a child per call; restarted when it dies. Usable from any event loop and thread.

    Args:
        setup: code that the worker runs once, at its start, to import and warm up what the calls need.
    """

    def __init__(self, setup: str = ""):
        self._setup = setup
        self._lock = threading.Lock()
        self._process: subprocess.Popen | None = None
        self._folder = ""
        self._socket = ""

    async def run(self, code: str, timeout_s: float, memory_mb: int = 512) -> WorkerReply:
        """Runs `code` in a child of the worker.

        A call whose worker dies under it is repeated once, for another call may have killed the worker.

        Raises:
            BrokenToolError: the worker cannot be started.
        """
        request = {
            "code": code,
            "timeout_s": timeout_s,
            "memory_mb": memory_mb,
            "max_output_bytes": MAX_OUTPUT_BYTES,
        }
        payload = json.dumps(request).encode()
        for _ in range(2):
            if not self.alive:
                await asyncio.get_running_loop().run_in_executor(None, self.start)
            process = self._process
            try:
                async with asyncio.timeout(timeout_s + GRACE_S):
                    reply = await self._exchange(payload)
            except TimeoutError:
                _kill(process)
                return WorkerReply("timeout", "")
            except OSError:
                reply = b""
            if reply:
                return WorkerReply(**json.loads(reply))
            _kill(process)
        return WorkerReply("worker", "")

    async def _exchange(self, payload: bytes) -> bytes:
        reader, writer = await asyncio.open_unix_connection(self._socket)
        try:
            writer.write(payload)
            writer.write_eof()
            return await reader.read(-1)
        finally:
            writer.close()

    @property
    def alive(self) -> bool:
        process = self._process
        return process is not None and process.poll() is None

    def start(self) -> None:
        """Starts the worker unless it is alive; blocks until it is ready."""
        with self._lock:
            if self.alive:
                return
            self._remove_folder()
            self._folder = tempfile.mkdtemp(prefix="worker-")
            self._socket = os.path.join(self._folder, "socket")
            program = Path(__file__).with_name("worker_main.py")
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-s", "-P", str(program), self._socket, self._setup],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    cwd=self._folder,
                    env=_environment(self._folder),
                    start_new_session=True,
                )
            except OSError as error:
                raise BrokenToolError(f"the Python worker did not start: {error}") from error
            self._await_ready(self._process)

    def close(self) -> None:
        """Ends the worker; a later call starts it again."""
        with self._lock:
            if self._process is not None:
                _kill(self._process)
                self._process.stdin.close()
                self._process.stdout.close()
                self._process = None
            self._remove_folder()

    def _await_ready(self, process: subprocess.Popen) -> None:
        readable, _, _ = select.select([process.stdout], [], [], START_TIMEOUT_S)
        if not readable or process.stdout.readline() != b"ready\n":
            _kill(process)
            self._remove_folder()
            raise BrokenToolError(f"the Python worker did not start (exit code {process.returncode})")

    def _remove_folder(self) -> None:
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder = ""


def shared_worker(setup: str = "") -> WorkerProcess:
    """The worker with the given setup code that everything in this process shares."""
    return _shared_worker(os.getpid(), setup)


@functools.cache
def _shared_worker(pid: int, setup: str) -> WorkerProcess:
    """`pid` is in the key because a forked process must not use its parent's worker."""
    worker = WorkerProcess(setup)
    atexit.register(worker.close)
    return worker


def _environment(folder: str) -> dict[str, str]:
    """A clean environment: no secrets of the caller's; a fixed hash seed so that equal code prints equal text."""
    return {
        "PATH": os.environ.get("PATH", os.defpath),
        "HOME": folder,
        "LANG": "C.UTF-8",
        "PYTHONHASHSEED": "0",
        "PYTHONDONTWRITEBYTECODE": "1",
        "OMP_NUM_THREADS": "1",
        "OPENBLAS_NUM_THREADS": "1",
    }


def _kill(process: subprocess.Popen) -> None:
    process.kill()
    process.wait()
