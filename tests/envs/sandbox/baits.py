"""The targets of attacks: things of the sandbox's owner, and whether anything has touched them."""

import contextlib
import os
import socket
import subprocess
import tempfile
from pathlib import Path

from tests.envs.sandbox.attacks import MARKER


class Baits:
    """Files, an environment variable, listening sockets and a process, all of the user who owns the sandbox."""

    def __init__(self) -> None:
        self._stack = contextlib.ExitStack()
        self.folder = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="bait-"))
        self.secret_file = str(Path(self.folder, "secret"))
        Path(self.secret_file).write_text(MARKER)
        os.environ["SANDBOX_TEST_SECRET"] = MARKER
        self.abstract = f"bait-{os.getpid()}"
        self._tcp = self._listen(socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0))
        self.port = self._tcp.getsockname()[1]
        self._messages = self._listen(socket.AF_UNIX, socket.SOCK_DGRAM, f"\0{self.abstract}-messages")
        self._victim = subprocess.Popen(["sleep", "1000"])
        self.victim = self._victim.pid

    def fill_in(self, code: str) -> str:
        """`code` with the baits' names in place of @name@."""
        for name in ("secret_file", "folder", "abstract", "port", "victim"):
            code = code.replace(f"@{name}@", str(getattr(self, name)))
        return code

    def damage(self) -> list[str]:
        """What has been touched; sockets are emptied."""
        found = []
        if sorted(os.listdir(self.folder)) != ["secret"] or Path(self.secret_file).read_text() != MARKER:
            found.append("files")
        with contextlib.suppress(BlockingIOError):
            self._tcp.accept()[0].close()
            found.append("tcp")
        with contextlib.suppress(BlockingIOError):
            self._messages.recv(100)
            found.append("unix messages")
        if self._victim.poll() is not None:
            found.append("process")
        return found

    def close(self) -> None:
        self._victim.kill()
        self._victim.wait()
        del os.environ["SANDBOX_TEST_SECRET"]
        self._stack.close()

    def _listen(self, family: int, kind: int, address) -> socket.socket:
        server = self._stack.enter_context(socket.socket(family, kind))
        server.bind(address)
        server.setblocking(False)
        if kind == socket.SOCK_STREAM:
            server.listen()
        return server
