"""A world as a trajectory plays it: the ways of forking, losses, random numbers, and copies that share something."""

from __future__ import annotations

import asyncio
import dataclasses
import random
import threading
from typing import ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rllib_arpo.core.tree import ToolStatus
from rllib_arpo.envs.errors import BrokenToolError, ContractError, ForkRefused, ToolError
from rllib_arpo.envs.worlds import Reply, World, WorldLost
from rllib_arpo.envs.worlds.copies import CopyChecks
from rllib_arpo.envs.worlds.session import WorldSession
from tests.helpers.worlds import texts, trunk_of


class Counter(World):
    """Counts up by what is said, from the seed on; a game as simple as they come."""

    takes_text = True

    def __init__(self):
        self.total = 0

    async def reset(self, question):
        self.total = question.row["seed"]
        return f"begin at {self.total}"

    async def act(self, action):
        if action == "no":
            raise ToolError("that is no number")
        self.total += int(action)
        return Reply(str(self.total))


class Forked(Counter):
    """Forks itself, which takes a while."""

    async def fork(self):
        await asyncio.sleep(0.01)
        other = type(self)()
        other.total = self.total
        return other


class Replayed(Counter):
    """Cannot be copied."""

    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()


@pytest.mark.parametrize(("make", "way"), [(Forked, "fork"), (Counter, "copy"), (Replayed, "replay")])
async def test_each_way_gives_a_fork_its_parents_state(make, way):
    trunk = trunk_of(make)
    await trunk.ready()
    assert trunk.opening == "begin at 1"
    root, other = trunk.fork_root(), trunk.fork_root()
    found = await texts(root, "1", "no", "2")
    placeholder = root.fork(begin=False)
    child = root.fork()
    found += await texts(root, "10")
    late = placeholder.fork()
    found += [
        *await texts(child, "20"),
        *await texts(late, "30"),
        *await texts(other, "5"),
        *await texts(root, "1"),
    ]
    assert trunk.maker.fork_method == way
    for play in (trunk, root, other, placeholder, child, late):
        await play.close()
    assert found == ["2", "that is no number", "4", "14", "24", "34", "6", "15"]


@settings(max_examples=40, deadline=None)
@given(
    make=st.sampled_from([Forked, Counter, Replayed]),
    moves=st.lists(st.tuples(st.integers(0, 9), st.one_of(st.none(), st.integers(1, 9))), min_size=1, max_size=25),
)
def test_whatever_is_played_parents_and_children_stay_apart(make, moves):
    """A move is of one of the plays so far: a fork (None) or a number; the twin is a list of sums."""

    async def play_all():
        plays, sums = [trunk_of(make).fork()], [1]
        for which, number in moves:
            which %= len(plays)
            if number is None:
                plays.append(plays[which].fork())
                sums.append(sums[which])
            else:
                sums[which] += number
                assert await texts(plays[which], str(number)) == [str(sums[which])]
        for play in plays:
            await play.close()

    asyncio.run(play_all())


async def test_a_replay_that_differs_refuses_the_fork():
    class Drifting(Replayed):
        made = 0

        async def reset(self, question):
            type(self).made += 1
            self.number = self.made
            return "begin"

        async def act(self, action):
            return Reply(f"{action} in world {self.number}")

    message = "The world cannot be repeated: turn 1, a, got 'a in world 2' in place of 'a in world 1'."
    trunk = trunk_of(Drifting)
    await trunk.ready()
    root = trunk.fork_root()
    assert await texts(root, "a", "b") == ["a in world 1", "b in world 1"]
    with pytest.raises(ForkRefused) as raised:
        await root.fork().ready()
    assert await texts(root, "c") == ["c in world 1"]
    assert str(raised.value) == message


class Mortal(Replayed):
    """Dies when it is told to, the first `deaths` times."""

    deaths = 1
    closed = 0

    async def act(self, action):
        if action == "slow":
            return Reply("too slow", status=ToolStatus.TIMEOUT)
        if action == "die" and Mortal.deaths > 0:
            Mortal.deaths -= 1
            raise WorldLost("killed")
        return await super().act("0" if action == "die" else action)

    async def close(self):
        Mortal.closed += 1
        raise BrokenToolError("nobody answers")


async def test_a_lost_world_is_made_again_and_what_was_done_is_repeated(monkeypatch):
    monkeypatch.setattr(Mortal, "deaths", 1)
    monkeypatch.setattr(Mortal, "closed", 0)
    lost = "The world was lost twice in one action (killed)."
    play = trunk_of(Mortal).fork()
    found = await texts(play, "5", "slow", "die", "1")
    monkeypatch.setattr(Mortal, "deaths", 2)
    found += await texts(trunk_of(Mortal).fork(), "3", "die", "1")
    assert found == ["6", "too slow", "6", "7", "4", lost, "5"]
    assert Mortal.closed == 3


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


def test_what_is_not_a_reply_names_the_contract():
    class Wrong(Counter):
        async def act(self, action):
            return action if action == "text" else Reply("x", reward=float("nan"))

    for said, message in {
        "text": r"^The world must return a Reply with a text, not 'text'\.$",
        "nan": r"^The world: the reward of 'nan' must be a finite number, not nan\.$",
    }.items():
        with pytest.raises(ContractError, match=message):
            asyncio.run(trunk_of(Wrong).say(said))


def test_a_score_that_is_none_names_the_contract():
    class Scored(Counter):
        async def score(self, path):
            return {"raises": 1 / 0 if path == "raises" else 0, "number": 1.0}[path]

    for path, message in {
        "raises": r"^The world: score raises ZeroDivisionError: division by zero\.$",
        "number": r"^The world: score must return a Score or None, not 1\.0\.$",
    }.items():
        with pytest.raises(ContractError, match=message):
            asyncio.run(trunk_of(Scored).score(path))


async def test_a_way_that_a_world_does_not_have_names_the_contract():
    class Unforkable(Counter):
        forks_by = "fork"

    with pytest.raises(ContractError, match=r"^The world cannot fork by 'fork'\.$"):
        trunk = trunk_of(Unforkable)
        await trunk.ready()
        await trunk.fork().ready()


class Dice(Counter):
    """Draws from both generators, across a wait."""

    async def act(self, action):
        first = random.randrange(10**6)
        await asyncio.sleep(0)
        return Reply(f"{first} {np.random.randint(10**6)}")


async def test_each_world_has_its_random_numbers_and_a_fork_its_parents():
    trunk = trunk_of(Dice)
    one, two = trunk.fork(), trunk.fork()
    random.seed(7)
    np.random.seed(7)
    outside = random.random(), np.random.random()
    random.seed(7)
    np.random.seed(7)
    rolls = await asyncio.gather(texts(one, "", ""), texts(two, "", ""))
    assert rolls[0] == rolls[1]
    assert len(set(rolls[0])) == 2
    child = one.fork()
    assert await texts(child, "") == await texts(one, "")
    await CopyChecks().check([child])
    assert (random.random(), np.random.random()) == outside


@pytest.mark.parametrize("make", [Forked, Replayed])
def test_a_world_whose_making_was_cancelled_is_made_when_it_is_needed(make):
    """Plain RLlib runs each step in a loop of its own, which cancels what it leaves behind."""
    trunk = trunk_of(make)
    root = asyncio.run(begun(trunk))
    child = asyncio.run(forked_in_a_step(root))
    assert asyncio.run(texts(child, "3")) == ["9"]


async def begun(trunk: WorldSession) -> WorldSession:
    await trunk.ready()
    root = trunk.fork_root()
    assert await texts(root, "5") == ["6"]
    return root


async def forked_in_a_step(root: WorldSession) -> WorldSession:
    child = root.fork()
    await asyncio.sleep(0)
    return child
