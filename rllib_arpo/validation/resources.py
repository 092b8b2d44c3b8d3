"""Checks that the cluster can ever provide the resources that a configuration asks for."""

from __future__ import annotations

from collections.abc import Iterable

import ray
from ray._private.state import state
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.tune.execution.cluster_info import _is_ray_cluster


def actor_bundles(config: AlgorithmConfig) -> list[dict[str, float]]:
    """The resources of the actors that `config` starts; the calling process itself is not counted."""
    from ray.rllib.algorithms.utils import _get_env_runner_bundles, _get_learner_bundles

    evaluation = {
        "CPU": config.evaluation_num_env_runners * config.num_cpus_per_env_runner,
        "GPU": config.evaluation_num_env_runners * config.num_gpus_per_env_runner,
    }
    return [*_get_env_runner_bundles(config), evaluation, *_get_learner_bundles(config)]


def check_cluster_resources(bundles: Iterable[dict[str, float]]) -> None:
    """Refuses a configuration whose resources the cluster can never provide; Ray would wait for them for ever.

    An autoscaling cluster may get more nodes than it has now: as many as its configuration allows.

    Raises:
        ValueError: it states the requested sum and the available amount.
    """
    if not ray.is_initialized() or _is_ray_cluster():
        return
    available = ray.cluster_resources()
    for resource, number in (state.get_max_resources_from_cluster_config() or {}).items():
        available[resource] = max(number, available.get(resource, 0))
    bundles = list(bundles)
    for resource, keys in (("CPU", "num_cpus_per_*"), ("GPU", "num_gpus_per_*")):
        wanted = sum(bundle.get(resource, 0) for bundle in bundles)
        if wanted > available.get(resource, 0) + 1e-6:
            raise ValueError(
                f"The run asks for {wanted:g} {resource}s in total and the cluster has "
                f"{available.get(resource, 0):g}: lower {keys} (fractions are fine) or the number of actors."
            )
