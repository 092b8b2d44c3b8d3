"""Environments for a real server of OpenEnv, which a test runs in a virtual environment of its own."""

from __future__ import annotations

from openenv.core.env_server.http_server import create_app
from openenv.core.env_server.interfaces import Environment
from openenv.core.env_server.types import Action, Observation, State


class Said(Action):
    number: int


class Heard(Observation):
    text: str = ""


class Adder(Environment):
    """Adds up what is said, from the seed on; each number is paid by the reward 0.25."""

    SUPPORTS_CONCURRENT_SESSIONS = True

    def __init__(self):
        super().__init__()
        self.total = 0

    def reset(self, seed=None, episode_id=None, **kwargs):
        self.total = seed or 0
        return Heard(text=f"begin at {self.total}")

    def step(self, action, timeout_s=None, **kwargs):
        self.total += action.number
        return Heard(text=f"at {self.total}", reward=0.25, done=self.total > 1000)

    @property
    def state(self):
        return State(step_count=self.total)


app = create_app(Adder, Said, Heard, max_concurrent_envs=64)
