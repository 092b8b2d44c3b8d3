"""A world that is lost and cannot be made again."""

from __future__ import annotations

import asyncio

import pytest

from rllib_arpo.envs.errors import BrokenToolError
from rllib_arpo.envs.question import QA, Question
from rllib_arpo.envs.worlds import World, WorldLost
from rllib_arpo.envs.worlds.play import Forking, Play


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
