"""Worlds that are lost and cannot be made again, and forks that fail."""

from __future__ import annotations

import asyncio
import re

import pytest

from rllib_arpo.envs.errors import BrokenToolError, ContractError
from rllib_arpo.envs.question import QA, Question
from rllib_arpo.envs.worlds import Reply, World, WorldLost
from rllib_arpo.envs.worlds.maker import WorldMaker
from rllib_arpo.envs.worlds.session import WorldSession
from tests.envs.worlds.test_session import Counter, Forked, Replayed, texts, trunk_of


class Paying(Replayed):
    """Pays for each action, begins elsewhere each time, and dies of "die"."""

    made = 0

    async def reset(self, question):
        Paying.made += 1
        return f"world {Paying.made}"

    async def act(self, action):
        if action == "die":
            raise WorldLost("killed")
        return Reply("right", reward=float(action))


@pytest.mark.parametrize(
    ("actions", "paid"), [(["0.0", "die"], "starts anew"), (["1.0", "die"], "has paid rewards, and cannot start anew")]
)
def test_a_lost_world_that_cannot_be_repeated_does_not_pay_again(actions, paid):
    async def played():
        session = trunk_of(Paying).fork()
        first, second = await texts(session, *actions)
        return f"{first}, {second}"

    differs = r"The world cannot be repeated: the beginning got 'world \d+' in place of 'world \d+'; it "
    if "cannot" in paid:
        with pytest.raises(BrokenToolError, match=f"^{differs}{paid}.$"):
            asyncio.run(played())
    else:
        assert re.fullmatch(f"right, {differs}{paid}.", asyncio.run(played()))


class Gone(World):
    """Its server dies at the first action."""

    takes_text, forks_by = True, "replay"
    made = 0

    async def reset(self, question):
        Gone.made += 1
        if Gone.made > 1:
            raise BrokenToolError("no server")
        return "begin"

    async def act(self, action):
        raise WorldLost("killed")


def test_a_lost_world_that_cannot_be_made_again_is_broken(monkeypatch):
    monkeypatch.setattr(Gone, "made", 0)

    async def played():
        play = WorldSession(WorldMaker("The world", Gone), Question("q", (), (), QA, "q")).fork()
        for _ in range(2):
            with pytest.raises(BrokenToolError, match=r"^no server$"):
                await play.say("1")

    asyncio.run(played())


def test_a_fork_that_fails_does_not_give_its_own_forks_the_parents_later_state():
    class Busy(Forked):
        failures = 1

        async def fork(self):
            if Busy.failures:
                Busy.failures -= 1
                raise BrokenToolError("busy")
            return await super().fork()

    async def played():
        root = trunk_of(Busy)
        await texts(root, "1")
        placeholder = root.fork(begin=False)
        assert await texts(root, "5") == ["7"]
        return await texts(placeholder.fork(), "10")

    assert asyncio.run(played()) == ["12"]


def test_a_fork_that_is_not_a_world_names_the_contract():
    class Forgetful(Counter):
        async def fork(self):
            return None

    async def forked():
        trunk = trunk_of(Forgetful)
        await trunk.ready()
        await trunk.fork().ready()

    with pytest.raises(ContractError, match=r"^The world: fork must return a World, not None\.$"):
        asyncio.run(forked())
