"""A world of any kind as a trajectory plays it: forks, losses, copies, and what it may not do."""

from __future__ import annotations

import asyncio
import dataclasses
import random
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rllib_arpo.envs.errors import BrokenToolError, ContractError
from rllib_arpo.envs.rewards import FinishedPath, Score
from rllib_arpo.envs.worlds import Call, Reply, World, WorldLost
from rllib_arpo.envs.worlds.maker import ReplayMismatch
from rllib_arpo.envs.worlds.session import CopyChecks, WorldSession, difference
from tests.helpers.far_worlds import Sums
from tests.helpers.openenv_server import OpenEnvServer
from tests.helpers.safe import Safe
from tests.helpers.worlds import (
    QUESTION,
    Counter,
    CountingEnv,
    Drifting,
    Faults,
    Forked,
    Replayed,
    RollingEnv,
    counting,
    far,
    number,
    rolling,
    texts,
    trunk_of,
)

#: Kind of world -> one that counts up by what is said, and how it forks.
KINDS: dict[str, tuple[Any, str]] = {
    "forks itself": (Forked, "fork"),
    "copied": (Counter, "copy"),
    "replayed": (Replayed, "replay"),
    "class": (Sums, "copy"),
    "class, in threads": ({Sums: {"blocking": True}}, "copy"),
    "program": (counting, "replay"),
    "gymnasium": ({CountingEnv: {"read": number}}, "copy"),
    "far": (far("Adder"), "fork"),
    "far, by demand": (far("Adder", forks_by="copy"), "fork"),
    "far, replayed": (far("Locked"), "replay"),
    "far, replayed by demand": (far("Adder", forks_by="replay"), "replay"),
    "far, copied until it acts": (far("Streaming"), ""),
    "far class": (far("Sums"), "fork"),
    "openenv": ({"openenv": {"read": "message"}}, "replay"),
}


@pytest.fixture(scope="module")
def server():
    with OpenEnvServer() as server:
        yield server


@settings(max_examples=80, deadline=None)
@given(
    kind=st.sampled_from(list(KINDS)),
    moves=st.lists(
        st.tuples(st.integers(0, 9), st.sampled_from(["fork", "later", "no", "1", "2", "30"])), min_size=1, max_size=25
    ),
)
def test_whatever_is_played_parents_and_children_stay_apart(server, kind, moves):
    """A move is of one of the plays so far; of a fork that begins "later" another fork plays. The twin: sums."""
    world, way = KINDS[kind]
    trunk = trunk_of({"openenv": {"url": server.url, "read": "message"}} if kind == "openenv" else world)

    async def said(play: WorldSession, text: str) -> str:
        return (await play.act(Call("add", {"number": text}) if "class" in kind else text)).text

    async def play_all():
        await trunk.ready()
        assert trunk.opening == "begin at 1"
        plays, sums = [trunk.fork_root(), trunk.fork_root()], [1, 1]
        placeholders = set()
        for which, move in moves:
            which %= len(plays)
            if move in ("fork", "later"):
                sums.append(sums[which])
                plays.append(plays[which].fork(begin=move == "fork"))
                placeholders |= {len(plays) - 1} if move == "later" else set()
                continue
            if which in placeholders:
                plays[which] = plays[which].fork()
                placeholders.remove(which)
            sums[which] += 0 if move == "no" else int(move)
            told = "that is no number" if move == "no" else str(sums[which])
            assert await said(plays[which], move) == told
        for play in plays:
            await play.ready()
        assert not way or trunk.maker.fork_method == way
        for play in (trunk, *plays):
            await play.close()
        await CopyChecks().check(plays)

    asyncio.run(play_all())


async def begun(trunk: WorldSession) -> WorldSession:
    await trunk.ready()
    root = trunk.fork_root()
    assert await texts(root, "5") == ["6"]
    return root


async def test_options_of_all_worlds_are_those_of_forks_too():
    trunk = trunk_of({Forked: {"timeout_s": 7.0}})
    assert (await trunk.fork_root().ready()).timeout_s == 7.0
    assert (await (await begun(trunk)).fork().ready()).timeout_s == 7.0


async def test_a_replay_keeps_to_the_places_of_its_tools():
    class Narrow(Replayed):
        tools: ClassVar = {"add": {"properties": {"n": {"type": "integer"}}}}
        acting, most = 0, 0

        async def act(self, action):
            Narrow.acting += 1
            Narrow.most = max(Narrow.most, Narrow.acting)
            await asyncio.sleep(0.001)
            Narrow.acting -= 1
            return await super().act(action.arguments["n"])

    root = trunk_of(Narrow)
    (tool,) = root.maker.tools()
    tool = dataclasses.replace(tool, max_concurrency=1)
    await root.call(tool, {"n": 1})
    forks = [root.fork() for _ in range(4)]
    found = [(await fork.call(tool, {"n": 2})).text for fork in forks]
    assert (found, Narrow.most) == (["4"] * 4, 1)


class Wrong(Counter):
    """Does what its action says."""

    async def act(self, action):
        if action == "cancelled":
            task = asyncio.ensure_future(asyncio.sleep(60))
            task.cancel()
            await task
        return action if action == "text" else Reply("x", reward=float("nan"))

    async def score(self, path):
        return 1.0 if path == "number" else 1 / 0


class Unforkable(Counter):
    forks_by = "fork"


class Demanded(Replayed):
    forks_by = "copy"


class Forgetful(Counter):
    async def fork(self):
        return None


class Unpaid(Safe):
    def reset(self, seed):
        """Begins."""

    def get_reward(self):
        return None


FINISHED = FinishedPath(QUESTION, (), True)
DEMANDED = 'The world has forks_by = "copy", and copy.deepcopy raises TypeError: '


@pytest.mark.parametrize(
    ("make", "what", "said", "error", "sentence"),
    [
        (Wrong, "act", "text", ContractError, "The world must return a Reply with a text, not 'text'."),
        (Wrong, "act", "nan", ContractError, "The world: the reward of 'nan' must be a finite number, not nan."),
        (Wrong, "act", "cancelled", RuntimeError, "it waited for something that was cancelled"),
        (Wrong, "score", "", ContractError, "The world: score raises ZeroDivisionError: division by zero."),
        (Wrong, "score", "number", ContractError, "The world: score must return a Score or None, not 1.0."),
        (Unpaid, "score", FINISHED, ContractError, "Unpaid.get_reward must be a finite number, not None."),
        (far("Unpaid"), "score", FINISHED, ContractError, "The world: score raises RuntimeError: TypeError: float() "),
        (Unforkable, "fork", "", ContractError, "The world cannot fork by 'fork'."),
        (Forgetful, "fork", "", ContractError, "The world: fork must return a World, not None."),
        (Demanded, "fork", "", ContractError, DEMANDED),
        (far("Locked", forks_by="copy"), "fork", "", ContractError, DEMANDED),
    ],
)
async def test_what_a_world_may_not_do(make, what, said, error, sentence):
    trunk = trunk_of(make)
    await trunk.ready()
    with pytest.raises(error) as raised:
        await (trunk.fork().ready() if what == "fork" else getattr(trunk, what)(said))
    assert str(raised.value).startswith(sentence)


class Dice(Counter):
    """Draws from both generators, across a wait."""

    async def act(self, action):
        first = random.randrange(10**6)
        await asyncio.sleep(0)
        return Reply(f"{first} {np.random.randint(10**6)}")


@pytest.mark.parametrize("make", [Dice, rolling, RollingEnv, far("Dice")])
async def test_each_world_has_its_random_numbers_and_a_fork_its_parents(make):
    def seed() -> None:
        random.seed(7)
        np.random.seed(7)

    trunk = trunk_of(make)
    one, two = trunk.fork(), trunk.fork()
    seed()
    outside = random.random(), np.random.random()
    seed()
    rolls = await asyncio.gather(texts(one, "", ""), texts(two, "", ""))
    assert rolls[0] == rolls[1]
    assert len(set(rolls[0])) == 2
    child = one.fork()
    assert await texts(child, "") == await texts(one, "")
    await CopyChecks().check([child])
    assert (random.random(), np.random.random()) == outside
    for play in (one, two, child):
        await play.close()


@pytest.mark.parametrize("make", [Forked, Replayed])
def test_a_world_whose_making_was_cancelled_is_made_when_it_is_needed(make):
    """Plain RLlib runs each step in a loop of its own, which cancels what it leaves behind."""

    async def forked_in_a_step() -> WorldSession:
        child = root.fork()
        await asyncio.sleep(0)
        return child

    root = asyncio.run(begun(trunk_of(make)))
    child = asyncio.run(forked_in_a_step())
    assert asyncio.run(texts(child, "3")) == ["9"]


KILLED = WorldLost("killed")


def failing(make, **faults):
    return trunk_of({make: {"faults": Faults(faults)}})


@pytest.mark.parametrize(
    ("deaths", "actions", "found"),
    [
        ([None, None, KILLED], ["5", "slow", "0", "1"], ["6", "too slow", "6", "7"]),
        ([None, KILLED, None, KILLED], ["3", "0", "1"], ["4", "The world was lost twice in one action (killed).", "5"]),
    ],
)
async def test_a_lost_world_is_made_again_and_what_was_done_is_repeated(deaths, actions, found, caplog):
    play = failing(Replayed, act=deaths, close=[BrokenToolError("nobody answers")] * 9).fork()
    assert await texts(play, *actions) == found


async def test_a_lost_world_that_cannot_be_repeated_is_broken():
    play = failing(Drifting, act=[None, KILLED]).fork()
    sentence = r"^The world cannot be repeated: turn 1, 0, got 'world \d+' in place of 'world \d+'\.$"
    with pytest.raises(BrokenToolError, match=sentence):
        await texts(play, "0", "0")


async def test_a_score_and_a_fork_of_a_lost_world_are_those_of_another_one():
    root = failing(Forked, fork=[KILLED], score=[KILLED])
    await texts(root, "5")
    child = root.fork()
    found = await texts(child, "1")
    assert [*found, *await texts(root, "2"), await root.score(None)] == ["7", "8", Score(8.0, 1.0)]


async def test_a_lost_world_that_cannot_be_made_again_is_broken(caplog):
    """A close that raises hides that from nobody."""
    gone, odd = BrokenToolError("no server"), KeyError("a bug")
    play = failing(Replayed, act=[KILLED], reset=[None, gone, gone], close=[odd, odd]).fork()
    for _ in range(2):
        with pytest.raises(BrokenToolError, match=r"^no server$"):
            await play.act("1")
    assert caplog.messages == ["The world did not close: KeyError: 'a bug'"] * 2


async def test_a_fork_that_fails_does_not_give_its_own_forks_the_parents_later_state():
    root = failing(Forked, fork=[BrokenToolError("busy")])
    await texts(root, "1")
    placeholder = root.fork(begin=False)
    assert await texts(root, "5") == ["7"]
    assert await texts(placeholder.fork(), "10") == ["12"]


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

    with pytest.raises(ContractError, match=r"the copies share something: repeated alone, turn 2, 3, got .* twice"):
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
    assert record.getMessage().startswith("The world differs when it is repeated (turn 1, ")


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

    monkeypatch.setattr("rllib_arpo.envs.worlds.session.CHECK_TIMEOUT_S", 0.01)
    checks = CopyChecks()
    for _ in range(2):
        await checks.check(await forked(Slow))
    assert caplog.messages == [
        "The world takes more than 0.01 s to be repeated: it is not known whether its copies share something."
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
