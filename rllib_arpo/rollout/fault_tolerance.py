"""What is done with an env runner that is alive and of no use."""

from __future__ import annotations

import ray
from ray.rllib.utils.actor_manager import FaultTolerantActorManager


def restart_env_runner(manager: FaultTolerantActorManager, runner: int) -> None:
    """Has Ray start a hung or broken env runner, and with it its engine, anew; it counts as unhealthy until then."""
    ray.kill(manager.actors()[runner], no_restart=False)
    manager.set_actor_state(runner, healthy=False)
