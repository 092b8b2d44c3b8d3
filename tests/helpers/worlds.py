"""Sessions with worlds, as trajectories have them, what is said there, and the simplest worlds of several kinds."""

from __future__ import annotations

import random
import sys
import threading
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np

from rllib_arpo.core.tree import ToolStatus
from rllib_arpo.envs.errors import ToolError
from rllib_arpo.envs.question import QA, Question
from rllib_arpo.envs.rewards import Score
from rllib_arpo.envs.worlds import Reply, World
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
    return [(await play.act(action)).text for action in actions]


class Faults(dict[str, list[Exception | None]]):
    """Method -> what its next calls raise, None where they do not; all copies of a world share it."""

    def __deepcopy__(self, _memo: dict[int, Any]) -> Faults:
        return self

    def strike(self, method: str) -> None:
        left = self.get(method)
        fault = left.pop(0) if left else None
        if fault is not None:
            raise fault


class Counter(World):
    """Counts up by what is said, from the seed on; a game as simple as they come. Copies fork it."""

    takes_text = True
    made = 0

    def __init__(self, faults: dict[str, list[Exception | None]] | None = None):
        self.total, self.faults = 0, Faults(faults or {})
        type(self).made += 1
        self.number = type(self).made

    async def reset(self, question):
        self.faults.strike("reset")
        self.total = question.row["seed"]
        return f"begin at {self.total}"

    async def act(self, action):
        self.faults.strike("act")
        if action == "no":
            raise ToolError("that is no number")
        if action == "slow":
            return Reply("too slow", status=ToolStatus.TIMEOUT)
        self.total += int(action)
        return Reply(str(self.total))

    async def score(self, path):
        self.faults.strike("score")
        return Score.of(float(self.total))

    async def close(self):
        self.faults.strike("close")


class Forked(Counter):
    """Forks itself."""

    async def fork(self):
        self.faults.strike("fork")
        other = type(self)(self.faults)
        other.total = self.total
        return other


class Replayed(Counter):
    """Cannot be copied."""

    def __init__(self, faults: dict[str, list[Exception | None]] | None = None):
        super().__init__(faults)
        self.lock = threading.Lock()


class Drifting(Replayed):
    """Is another world each time."""

    async def reset(self, question):
        await super().reset(question)
        return "begin"

    async def act(self, action):
        self.faults.strike("act")
        return Reply(f"world {self.number}", reward=float(action) if isinstance(action, str) else 0.0)


async def counting(chat, row):
    """The same as a program."""
    total = row.pop("seed")  # The row is the program's own, in each fork.
    told = f"begin at {total}"
    while True:
        said = await chat(told)
        total += 0 if said == "no" else int(said)
        told = "that is no number" if said == "no" else str(total)


async def rolling(chat, row):
    while True:
        await chat(f"{random.randrange(10**6)} {np.random.randint(10**6)}")


def number(text: str) -> int:
    if text == "no":
        raise ToolError("that is no number")
    return int(text)


class CountingEnv(gym.Env):
    """The same as an environment of Gymnasium."""

    observation_space, action_space = gym.spaces.Text(100), gym.spaces.Discrete(100)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.total = seed
        return f"begin at {seed}", {}

    def step(self, action):
        self.total += action
        return str(self.total), 0.0, False, False, {}


class RollingEnv(CountingEnv):
    """Its random numbers are its own."""

    action_space = gym.spaces.Text(5, min_length=0)

    def step(self, action):
        return str(self.np_random.integers(10**6)), 0.0, False, False, {}


def far(name: str, **options: Any) -> dict[str, Any]:
    """One of `far_worlds.py` in a process of another Python."""
    return {f"tests.helpers.far_worlds:{name}": {"python": sys.executable, **options}}
