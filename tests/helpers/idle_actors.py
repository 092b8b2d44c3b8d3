"""Actors in the places of engines and learners; a process that unpickles them imports nothing of ours."""

from typing import Any

import ray


def gpus_here() -> list[str]:
    """The GPUs that Ray has given to this process."""
    node = ray.get_runtime_context().get_node_id()
    return [f"{node}/{number}" for number in ray.get_gpu_ids()]


@ray.remote
class Idle:
    def gpus(self) -> list[str]:
        return gpus_here()


def start_idle(split: dict[str, Any]) -> None:
    """A trial that starts its actors in RLlib's order, each where Tune's placement group has room for it."""
    from ray import tune  # Of which each actor would import much.

    alive, placed = [], {}
    for kind in ("engine", "learner"):
        actors = [Idle.options(num_cpus=0.05, num_gpus=split[kind]).remote() for _ in range(split["number"])]
        placed[kind] = [gpu for gpus in ray.get([actor.gpus.remote() for actor in actors]) for gpu in gpus]
        alive += actors
    tune.report(placed)
