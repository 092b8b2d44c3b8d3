"""Sessions with worlds, as trajectories have them, and what is said there."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from rllib_arpo.envs.question import QA, Question
from rllib_arpo.envs.worlds.registry import find_world
from rllib_arpo.envs.worlds.session import WorldSession

QUESTION = Question("q", (), (), QA, "row 3", row={"seed": 1})


def trunk_of(world: Any, *messages: tuple[str, str], **row: Any) -> WorldSession:
    """The session of a question from which its trajectories fork.

    Args:
        world: as in `env_config["world"]`; messages call it "The world".
        row: of the question; none: that of `QUESTION`.
    """
    maker = find_world(world)
    maker.name = "The world"
    return WorldSession(maker, replace(QUESTION, messages=messages, row=row or QUESTION.row))


async def texts(play: WorldSession, *actions: str) -> list[str]:
    return [(await play.say(action)).text for action in actions]
