"""Describes failures of env runners as values, and restarts or ends such env runners."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import ray
from ray.exceptions import ActorUnavailableError, GetTimeoutError, RayActorError

if TYPE_CHECKING:
    from ray.rllib.utils.actor_manager import FaultTolerantActorManager


#: Seconds after which an env runner that does not answer counts as hung.
ANSWER_TIMEOUT_S = 120.0
#: Seconds that an env runner's process gets to end by itself.
END_TIMEOUT_S = 10.0
#: Seconds to wait for an env runner that could not be made, since Ray may first restart it with its engine.
CONSTRUCTION_TIMEOUT_S = 300.0


@dataclass(frozen=True, slots=True)
class Failure:
    """Why something failed. It is a value, because RLlib ends an env runner at any exception and drops the cause.

    Attributes:
        message: one sentence.
        retry: whether a restarted env runner might succeed.
        traceback: the error's traceback, or empty.
    """

    message: str
    retry: bool
    traceback: str = ""


def restart_env_runner(manager: FaultTolerantActorManager, runner: int, timeout_s: float = END_TIMEOUT_S) -> None:
    """Ends a hung or broken env runner. Ray then restarts it with its engine; until then it counts as unhealthy.

    The function returns when the process has ended. Until `ray.kill` has ended it, a process still answers pings; if
    RLlib took it back into service, its broken engine would get questions.

    Args:
        timeout_s: how long the process may take to end by itself, and again after `ray.kill`.
    """
    actor = manager.actors()[runner]
    manager.set_actor_state(runner, healthy=False)
    # The call fails when the process ends, either way.
    call = actor.apply.remote(_end_process)
    if not ray.wait([call], timeout=timeout_s)[0]:
        ray.kill(actor, no_restart=False)
        ray.wait([call], timeout=timeout_s)


def check_constructed(manager: FaultTolerantActorManager) -> None:
    """Raises the error of an env runner's constructor, which RLlib only logs before it goes on without the actor.

    Raises:
        RuntimeError: the message names the env runner, and the cause is the constructor's error.
    """
    deadline = time.monotonic() + CONSTRUCTION_TIMEOUT_S
    for number in sorted({*manager.actor_ids()} - {*manager.healthy_actor_ids()}):
        while time.monotonic() < deadline:
            try:
                ray.get(manager.actors()[number].ping.remote(), timeout=END_TIMEOUT_S)
                break
            except ActorUnavailableError:  # Ray is restarting it.
                time.sleep(1.0)
            except GetTimeoutError:
                continue
            except RayActorError as error:
                cause = error.args[0].cause if error.actor_init_failed else error
                kind = type(cause).__name__
                raise RuntimeError(f"Env runner {number} could not be made: {kind}: {cause}") from cause


def _end_process(_env_runner: object) -> None:
    os._exit(1)


def end_env_runner(manager: FaultTolerantActorManager, runner: int) -> None:
    """Ends an env runner for good."""
    ray.kill(manager.actors()[runner], no_restart=True)
    manager.set_actor_state(runner, healthy=False)
