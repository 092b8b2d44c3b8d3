"""Whether the cluster can ever give what a configuration asks for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import ray

if TYPE_CHECKING:
    from rllib_arpo.arpo_config import ARPOConfig


def actor_bundles(config: ARPOConfig) -> list[dict[str, float]]:
    """What the actors that `config` starts ask for; the calling process itself is not counted."""
    from ray.rllib.algorithms.utils import _get_env_runner_bundles, _get_learner_bundles

    evaluation = {
        "CPU": config.evaluation_num_env_runners * config.num_cpus_per_env_runner,
        "GPU": config.evaluation_num_env_runners * config.num_gpus_per_env_runner,
    }
    return [*_get_env_runner_bundles(config), evaluation, *_get_learner_bundles(config)]


def check_cluster_resources(bundles: Iterable[dict[str, float]]) -> None:
    """Refuses what the cluster can never give; Ray would wait for it without end.

    Raises:
        ValueError: with the sum that is asked for and what there is.
    """
    if not ray.is_initialized():
        return
    available = ray.cluster_resources()
    bundles = list(bundles)
    for resource, keys in (("CPU", "num_cpus_per_*"), ("GPU", "num_gpus_per_*")):
        wanted = sum(bundle.get(resource, 0) for bundle in bundles)
        if wanted > available.get(resource, 0) + 1e-6:
            raise ValueError(
                f"The run asks for {wanted:g} {resource}s in total and the cluster has "
                f"{available.get(resource, 0):g}: lower {keys} (fractions are fine) or the number of actors."
            )
