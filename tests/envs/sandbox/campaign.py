"""Makes all attacks on one sandbox and reports their outcomes.

`python -m tests.envs.sandbox.campaign` prints JSON: {"user", "outcomes": {name: [what went wrong, ...]}, "leftovers"}.
"""

import asyncio
import json
import os
import re
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from rllib_arpo.envs.sandbox.fork_server import GRACE_S, ForkServer, WorkerReply
from tests.envs.sandbox.attacks import ATTACKS, BREACH, Attack
from tests.envs.sandbox.baits import Baits
from tests.helpers.processes import descendants, eventually

SETUP = "import math, numpy, sympy"
#: A right answer, whatever an attack does meanwhile.
NEIGHBOUR = "import sympy\nx = sympy.Symbol('neighbour')\nprint(sum(range(100)), sympy.expand((x + 1)**2))"
NEIGHBOUR_ANSWER = WorkerReply("ok", "4950 neighbour**2 + 2*neighbour + 1\n")
_NEIGHBOUR_TIME_S = 60.0
_SETTLE_S = 20.0
_AT_ONCE = 8


async def attempt(attack: Attack, server: ForkServer, baits: Baits) -> list[str]:
    """Makes one attack, with a neighbour beside it. Returns the damage: none, if the attack failed."""
    wrong = []
    begin = time.monotonic()
    reply, neighbour = await asyncio.gather(
        server.run(baits.fill_in(attack.code), attack.time_limit_s), server.run(NEIGHBOUR, _NEIGHBOUR_TIME_S)
    )
    seconds = time.monotonic() - begin
    status = reply.status if reply.signal is None else f"{reply.status} {reply.signal}"
    told = f"{status}: {reply.output.strip()}"
    if BREACH in told or not re.fullmatch(attack.blocked, told, re.DOTALL):
        wrong.append(f"the reply was {told[-300:]!r}")
    if seconds > attack.time_limit_s + _NEIGHBOUR_TIME_S + GRACE_S:
        wrong.append(f"it took {seconds:.1f} s")
    if neighbour != NEIGHBOUR_ANSWER:
        wrong.append(f"its neighbour got {neighbour}")
    if attack.then:
        later = await server.run(attack.then, _NEIGHBOUR_TIME_S)
        if later.status != "ok" or later.output.strip() != "clean":
            wrong.append(f"the next call got {later.status}: {later.output[-300:]!r}")
    wrong += [f"touched: {what}" for what in baits.damage()]
    return wrong


async def make_all(attacks: Iterable[Attack], server: ForkServer, baits: Baits) -> dict[str, list[str]]:
    """Makes the attacks, some at once. What is touched outside is laid to all that ran meanwhile."""
    places = asyncio.Semaphore(_AT_ONCE)

    async def one(attack: Attack) -> tuple[str, list[str]]:
        async with places:
            return attack.name, await attempt(attack, server, baits)

    return dict(await asyncio.gather(*map(one, attacks)))


def traces() -> set[str]:
    """What could be left behind on this machine: files where everybody may write, System V objects.

    With a `TMPDIR` of this process alone, files elsewhere do not count: neighbours of the same user leave theirs there.
    """
    temporary = tempfile.gettempdir()
    folders = ("/tmp", "/dev/shm", "/var/tmp") if temporary == "/tmp" else (temporary,)
    found = {str(path) for folder in folders for path in Path(folder).glob("*")}
    for kind in ("shm", "sem", "msg"):
        found.update(Path(f"/proc/sysvipc/{kind}").read_text().splitlines()[1:])
    return found


def settled(at_most: int) -> list[int]:
    """The descendants once there are at most so many, or those that are still there after a while."""
    eventually(lambda: len(descendants(zombies=True)) <= at_most, _SETTLE_S)
    return sorted(descendants(zombies=True))


def main() -> dict:
    server = ForkServer(SETUP, fenced=True)
    server.start()
    baits = Baits()
    processes, files = len(descendants(zombies=True)), traces()
    try:
        outcomes = asyncio.run(make_all(ATTACKS.values(), server, baits))
        leftovers = [f"process {pid}" for pid in settled(processes)[processes:]]
        leftovers += sorted(own(traces() - files))
    finally:
        baits.close()
        server.close()
    leftovers += [f"process {pid} of the server" for pid in settled(0)]
    return {"user": os.getuid(), "outcomes": outcomes, "leftovers": leftovers}


def own(files: set[str]) -> set[str]:
    """Those of this user: others work in the same folders."""
    return {path for path in files if not path.startswith("/") or _owner(path) == os.getuid()}


def _owner(path: str) -> int | None:
    try:
        return os.lstat(path).st_uid
    except FileNotFoundError:
        return None


if __name__ == "__main__":
    print(json.dumps(main()))
