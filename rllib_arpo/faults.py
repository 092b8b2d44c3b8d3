"""Failures of an env runner as values, and functions that restart or end such an env runner."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import ray

if TYPE_CHECKING:
    from ray.rllib.utils.actor_manager import FaultTolerantActorManager


@dataclass(frozen=True, slots=True)
class Failure:
    """Why something failed. It travels as a value, since RLlib ends an env runner on any exception and drops the cause.

    Attributes:
        message: one sentence.
        retry: whether a restarted env runner might succeed.
        traceback: where it came from; may be empty.
    """

    message: str
    retry: bool
    traceback: str = ""


def restart_env_runner(manager: FaultTolerantActorManager, runner: int) -> None:
    """Makes Ray restart a hung or broken env runner with its engine; until then it counts as unhealthy."""
    ray.kill(manager.actors()[runner], no_restart=False)
    manager.set_actor_state(runner, healthy=False)


def end_env_runner(manager: FaultTolerantActorManager, runner: int) -> None:
    """Ends an env runner for good; it stays unhealthy."""
    ray.kill(manager.actors()[runner], no_restart=True)
    manager.set_actor_state(runner, healthy=False)
