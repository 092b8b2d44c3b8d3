"""Makes all attacks on one sandbox and reports their outcomes.

`python -m tests.envs.sandbox.campaign` prints JSON: {"user", "outcomes": {name: [what went wrong, ...]}, "leftovers"}.
"""

import asyncio
import contextlib
import json
import os
import re
import socket
import subprocess
import tempfile
from pathlib import Path

from rllib_arpo.envs.sandbox.fork_server import ForkServer, WorkerReply
from tests.envs.sandbox.attacks import ATTACKS, BREACH, MARKER, Attack
from tests.helpers.processes import descendants, eventually

SETUP = "import math, numpy, sympy"
#: A right answer, whatever an attack does meanwhile.
NEIGHBOUR = "import sympy\nx = sympy.Symbol('neighbour')\nprint(sum(range(100)), sympy.expand((x + 1)**2))"
NEIGHBOUR_ANSWER = WorkerReply("ok", "4950 neighbour**2 + 2*neighbour + 1\n")
_PATIENCE_S = 60.0
_AT_ONCE = 8


class Baits(contextlib.ExitStack):
    """The targets of attacks, all of the user who owns the sandbox: files, an environment variable, listening sockets
    and a process."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = self.enter_context(tempfile.TemporaryDirectory(prefix="bait-"))
        self.secret_file = str(Path(self.folder, "secret"))
        Path(self.secret_file).write_text(MARKER)
        os.environ["SANDBOX_TEST_SECRET"] = MARKER
        self.callback(os.environ.pop, "SANDBOX_TEST_SECRET")
        self.abstract = f"bait-{os.getpid()}"
        self._tcp = self.enter_context(socket.create_server(("127.0.0.1", 0)))
        self.port = self._tcp.getsockname()[1]
        self._messages = self.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM))
        self._messages.bind(f"\0{self.abstract}-messages")
        for listening in (self._tcp, self._messages):
            listening.setblocking(False)
        self._victim = self.enter_context(subprocess.Popen(["sleep", "1000"]))
        self.callback(self._victim.kill)
        self.victim = self._victim.pid

    def fill_in(self, code: str) -> str:
        """`code` with the baits' names in place of @name@."""
        for name in ("secret_file", "folder", "abstract", "port", "victim"):
            code = code.replace(f"@{name}@", str(getattr(self, name)))
        return code

    def damage(self) -> list[str]:
        """What has been touched; sockets are emptied."""
        found = []
        if os.listdir(self.folder) != ["secret"] or Path(self.secret_file).read_text() != MARKER:
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


async def attempt(attack: Attack, server: ForkServer, baits: Baits) -> list[str]:
    """Makes one attack, with a neighbour beside it. Returns the damage: none, if the attack failed."""
    wrong = []
    reply, neighbour = await asyncio.gather(
        server.run(baits.fill_in(attack.code), attack.time_limit_s), server.run(NEIGHBOUR, _PATIENCE_S)
    )
    status = reply.status if reply.signal is None else f"{reply.status} {reply.signal}"
    told = f"{status}: {reply.output.strip()}"
    if BREACH in told or not re.fullmatch(attack.blocked, told, re.DOTALL):
        wrong.append(f"the reply was {told[-300:]!r}")
    if neighbour != NEIGHBOUR_ANSWER:
        wrong.append(f"its neighbour got {neighbour}")
    if attack.then:
        later = await server.run(attack.then, _PATIENCE_S)
        if later.status != "ok" or later.output.strip() != "clean":
            wrong.append(f"the next call got {later.status}: {later.output[-300:]!r}")
    return wrong + [f"touched: {what}" for what in baits.damage()]


async def make_all(server: ForkServer, baits: Baits) -> dict[str, list[str]]:
    """Makes the attacks, some at once. What is touched outside is laid to all that ran meanwhile."""
    places = asyncio.Semaphore(_AT_ONCE)

    async def one(attack: Attack) -> list[str]:
        async with places:
            return await attempt(attack, server, baits)

    return dict(zip(ATTACKS, await asyncio.gather(*map(one, ATTACKS.values())), strict=True))


def traces() -> set[str]:
    """What this user could leave behind on this machine: files where everybody may write, System V objects.

    With a `TMPDIR` of this process alone, files elsewhere do not count: neighbours of the same user leave theirs there.
    """
    temporary = tempfile.gettempdir()
    folders = ("/tmp", "/dev/shm", "/var/tmp") if temporary == "/tmp" else (temporary,)
    found = set()
    for path in (path for folder in folders for path in Path(folder).glob("*")):
        with contextlib.suppress(FileNotFoundError):
            found |= {str(path)} if path.lstat().st_uid == os.getuid() else set()
    for kind in ("shm", "sem", "msg"):
        found.update(Path(f"/proc/sysvipc/{kind}").read_text().splitlines()[1:])
    return found


def settled(at_most: int) -> list[int]:
    """The descendants once there are at most so many, or those that are still there after a while."""
    eventually(lambda: len(descendants(zombies=True)) <= at_most, 20.0)
    return sorted(descendants(zombies=True))


def main() -> dict:
    server = ForkServer(SETUP, fenced=True)
    server.start()
    with Baits() as baits:
        processes, files = len(descendants(zombies=True)), traces()
        outcomes = asyncio.run(make_all(server, baits))
        leftovers = [f"process {pid}" for pid in settled(processes)[processes:]]
        leftovers += sorted(traces() - files)
    server.close()
    leftovers += [f"process {pid} of the server" for pid in settled(0)]
    return {"user": os.getuid(), "outcomes": outcomes, "leftovers": leftovers}


if __name__ == "__main__":
    print(json.dumps(main()))
