"""Worlds whose copies share something with the original, and those whose repetitions differ."""

from __future__ import annotations

import asyncio
from typing import ClassVar

import pytest

from rllib_arpo.core.tree import ToolStatus
from rllib_arpo.envs.errors import BrokenToolError, ContractError
from rllib_arpo.envs.rewards import FinishedPath, Score
from rllib_arpo.envs.worlds import Call, Reply, World
from rllib_arpo.envs.worlds.copies import CopyChecks, difference
from rllib_arpo.envs.worlds.running import ReplayMismatch
from rllib_arpo.envs.worlds.session import WorldSession
from tests.envs.worlds.test_session import Counter, Replayed
from tests.helpers.worlds import QUESTION, texts, trunk_of

SESSIONS: dict[str, list[str]] = {}


class Session(Counter):
    """Keeps its lines elsewhere, under an id which a copy has too."""

    made = 0

    def __init__(self):
        super().__init__()
        Session.made += 1
        self.id = f"session {Session.made}"
        SESSIONS[self.id] = []

    async def act(self, action):
        SESSIONS[self.id].append(action)
        return Reply(" ".join(SESSIONS[self.id]))


class Demanded(Replayed):
    forks_by = "copy"


async def test_a_world_that_python_cannot_copy_is_replayed_and_the_log_says_so(caplog):
    root = trunk_of(Replayed)
    await texts(root, "1")
    assert await texts(root.fork(), "2") + await texts(root.fork(), "3") == ["4", "5"]
    assert caplog.messages == [
        "The world cannot be copied (TypeError: cannot pickle '_thread.lock' object): its forks are replayed."
    ]


def test_two_texts_that_differ_are_shown_where_they_do():
    def differs(before: Reply, again: Reply) -> str:
        return str(ReplayMismatch(1, "turn 1", before, again))

    longer = differs(Reply("a" * 300), Reply("a" * 300 + " and b"))
    assert longer == f"turn 1 got '{'a' * 100} and b' in place of '{'a' * 100}'"
    assert "functions=({'name': 'f'},)" in differs(Reply("a"), Reply("a", functions=({"name": "f"},)))


async def test_a_world_that_demands_copies_is_not_replayed():
    with pytest.raises(ContractError, match=r'^The world has forks_by = "copy", and copy.deepcopy raises TypeError: '):
        trunk = trunk_of(Demanded)
        await trunk.ready()
        trunk.fork()


class Shared(Counter):
    """Keeps its lines in an attribute of the class, which all worlds share: replays differ too."""

    lines: ClassVar[list[str]] = []

    async def act(self, action):
        self.lines.append(action)
        return Reply(str(len(self.lines)))


async def forked(make) -> list[WorldSession]:
    trunk = trunk_of(make)
    await trunk.ready()
    root = trunk.fork_root()
    await texts(root, "1")
    child = root.fork()
    await texts(root, "2")
    await texts(child, "3")
    return [root, child]


async def test_copies_that_share_something_end_the_run():
    with pytest.raises(ContractError, match=r"the copies share something: turn 2, 3, got .* twice"):
        await CopyChecks().check(await forked(Session))


async def test_replays_that_differ_are_one_warning(caplog):
    checks = CopyChecks()
    await checks.check(await forked(Shared))
    await checks.check(await forked(Shared))
    (record,) = caplog.records
    assert record.getMessage().startswith("The world is not the same when it is repeated (turn 1, ")


async def test_only_the_first_copies_of_a_run_are_checked():
    class Counted(Counter):
        made = 0

        def __init__(self):
            super().__init__()
            Counted.made += 1

    async def checked():
        checks = CopyChecks()
        for _ in range(3):
            plays = [play for _ in range(3) for play in await forked(Counted)]
            before = Counted.made
            await checks.check(plays)
            yield Counted.made - before

    # Three forks and their three parents, twice each; again; then the last two of eight.
    assert [number async for number in checked()] == [12, 12, 8]


async def test_checks_that_take_too_long_end_with_a_warning(caplog, monkeypatch):
    class Slow(Counter):
        async def act(self, action):
            await asyncio.sleep(0.05)
            return await super().act(action)

    monkeypatch.setattr("rllib_arpo.envs.worlds.copies.TIMEOUT_S", 0.01)
    checks = CopyChecks()
    for _ in range(2):
        await checks.check(await forked(Slow))
    assert caplog.messages == [
        "The world takes more than 0.01 s to be repeated: whether its copies share something is not known."
    ]


async def test_what_a_world_does_with_its_arguments_does_not_change_what_was_done():
    class Shelf(World):
        tools: ClassVar = {"put": {}}

        async def act(self, action):
            thing = action.arguments["thing"]
            shown = str(thing)
            thing["used"] = True
            return Reply(shown)

    root = trunk_of(Shelf)
    await root.act(Call("put", {"thing": {}}))
    child = root.fork()
    reply = await child.act(Call("put", {"thing": {"size": 1}}))
    await CopyChecks().check([child])
    assert reply.text == "{'size': 1}"


async def test_what_took_too_long_cannot_be_repeated_and_accuses_no_copy():
    class Late(Counter):
        async def act(self, action):
            return Reply("too late", status=ToolStatus.TIMEOUT)

    root = trunk_of(Late)
    await texts(root, "1")
    child = root.fork()
    await texts(child, "2")
    await CopyChecks().check([child])


async def test_a_score_that_cannot_be_repeated_accuses_no_copy():
    class Judged(Counter):
        judged = 0

        async def score(self, path):
            Judged.judged += 1
            if Judged.judged > 1:
                raise BrokenToolError("no judge")
            return Score(1.0, 1.0)

    root = trunk_of(Judged)
    await texts(root, "1")
    child = root.fork()
    await texts(child, "2")
    await child.score(FinishedPath(QUESTION, (), True, None))
    assert str(await difference(child)) == "no judge"
