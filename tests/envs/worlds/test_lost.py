"""Worlds that are lost and cannot be made again, and forks that fail."""

from __future__ import annotations

import asyncio

import pytest

from rllib_arpo.envs.errors import BrokenToolError, ContractError
from rllib_arpo.envs.question import QA, Question
from rllib_arpo.envs.worlds import World, WorldLost
from rllib_arpo.envs.worlds.play import Forking, Play
from tests.envs.worlds.test_play import Counter, Forked, texts, trunk_of


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
        play = Play(Forking(Gone, "The world"), Question("q", (), (), QA, "q")).fork()
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
