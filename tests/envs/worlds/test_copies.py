"""Worlds whose copies share something with the original, and those whose repetitions differ."""

from __future__ import annotations

import asyncio
from typing import ClassVar

import pytest

from rllib_arpo.envs.errors import BrokenToolError, ContractError
from rllib_arpo.envs.rewards import FinishedPath
from rllib_arpo.envs.worlds import Call, Reply, World
from rllib_arpo.envs.worlds.copies import CopyChecks, difference
from rllib_arpo.envs.worlds.running import ReplayMismatch
from rllib_arpo.envs.worlds.session import WorldSession
from tests.helpers.worlds import QUESTION, Counter, Faults, texts, trunk_of


async def forked(make) -> list[WorldSession]:
    trunk = trunk_of(make)
    await trunk.ready()
    root = trunk.fork_root()
    await texts(root, "1")
    child = root.fork()
    await texts(root, "2")
    await texts(child, "3")
    return [root, child]


@pytest.mark.parametrize(
    ("before", "again", "shown"),
    [
        (Reply("a" * 300), Reply("a" * 300 + " and b"), f"turn 1 got '{'a' * 100} and b' in place of '{'a' * 100}'"),
        (Reply("a"), Reply("a", functions=({"name": "f"},)), "functions=({'name': 'f'},)"),
    ],
)
def test_two_texts_that_differ_are_shown_where_they_do(before, again, shown):
    assert shown in str(ReplayMismatch("turn 1", before, again))


async def test_copies_that_share_something_end_the_run():
    class Session(Counter):
        """Keeps its lines elsewhere, under a number which a copy has too."""

        lines: ClassVar[dict[int, str]] = {}

        async def act(self, action):
            self.lines[self.number] = self.lines.get(self.number, "") + action
            return Reply(self.lines[self.number])

    with pytest.raises(ContractError, match=r"the copies share something: turn 2, 3, got .* twice"):
        await CopyChecks().check(await forked(Session))


async def test_replays_that_differ_are_one_warning(caplog):
    class Shared(Counter):
        """Its lines belong to the class, and so to all worlds: replays differ too."""

        lines: ClassVar[list[str]] = []

        async def act(self, action):
            self.lines.append(action)
            return Reply(str(len(self.lines)))

    checks = CopyChecks()
    for _ in range(2):
        await checks.check(await forked(Shared))
    (record,) = caplog.records
    assert record.getMessage().startswith("The world is not the same when it is repeated (turn 1, ")


async def test_only_the_first_copies_of_a_run_are_checked():
    class Counted(Counter): ...

    checks, found = CopyChecks(), []
    for _ in range(3):
        plays = [play for _ in range(3) for play in await forked(Counted)]
        before = Counted.made
        await checks.check(plays)
        found.append(Counted.made - before)
    # Three forks and their three parents, twice each; again; then the last two of eight.
    assert found == [12, 12, 8]


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


async def test_what_cannot_be_repeated_accuses_no_copy():
    root = trunk_of(Counter)
    await texts(root, "slow")
    child = root.fork()
    await texts(child, "slow")
    await CopyChecks().check([child])
    _, child = await forked({Counter: {"faults": Faults(score=[None, BrokenToolError("no judge")])}})
    await child.score(FinishedPath(QUESTION, (), True, None))
    assert str(await difference(child)) == "no judge"
