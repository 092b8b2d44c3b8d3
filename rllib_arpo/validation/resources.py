"""Checks that the cluster can ever provide the resources that a configuration asks for."""

import math
import os
from collections.abc import Iterable, Mapping, Sequence

import ray
from ray._private.state import state
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.tune.execution.cluster_info import _is_ray_cluster

#: KubeRay's operator sets it in every pod. Ray does not say whether such a cluster grows.
KUBERAY = "RAY_CLUSTER_NAME"
#: Nodes of a group that may grow without limit.
NO_LIMIT = 1e9

Resources = Mapping[str, float]


def actor_bundles(config: AlgorithmConfig) -> list[dict[str, float]]:
    """The resources of each actor that `config` starts; the calling process itself is not counted."""
    from ray.rllib.algorithms.utils import _get_env_runner_bundles, _get_learner_bundles

    bundles = [*_get_env_runner_bundles(config), *_get_learner_bundles(config)]
    if (evaluation := config.get_evaluation_config_object()) is not None:
        bundles += _get_env_runner_bundles(evaluation)
    return bundles


def check_cluster_resources(bundles: Sequence[Resources]) -> None:
    """Refuses a configuration whose resources the cluster can never provide; Ray would wait for them for ever.

    An autoscaling cluster may get more nodes than it has now: as many as its configuration allows. A cluster that may
    grow in a way that Ray does not know (the cluster launcher's, KubeRay's) is not checked.

    Raises:
        ValueError: it states what is asked for and what there is.
    """
    if not ray.is_initialized() or _is_ray_cluster() or KUBERAY in os.environ:
        return
    now = [(node["Resources"], 1.0) for node in ray.nodes() if node["Alive"]]
    groups = getattr(state.get_cluster_config(), "node_group_configs", ())
    grown = [(group.resources, NO_LIMIT if group.max_count < 0 else group.max_count) for group in groups]
    fleets = [now, grown]
    for resource in dict.fromkeys(name for bundle in bundles for name in bundle):
        _check_sum(resource, bundles, max(sum(node.get(resource, 0) * n for node, n in fleet) for fleet in fleets))
    positive = [{name: amount for name, amount in bundle.items() if amount} for bundle in bundles]
    for bundle in map(dict, dict.fromkeys(tuple(bundle.items()) for bundle in positive if bundle)):
        number = sum(all(other.get(name, 0) >= amount for name, amount in bundle.items()) for other in bundles)
        if number > (places := max(sum(_places(bundle, node) * n for node, n in fleet) for fleet in fleets)):
            wanted = " and ".join(f"{amount:g} {name}" for name, amount in bundle.items())
            raise ValueError(
                f"The run asks for {number} actors with {wanted} each, which must lie on one node, and the cluster's "
                f"nodes have room for {places:g}: lower {_keys(bundle)} or the number of actors."
            )


def _check_sum(resource: str, bundles: Sequence[Resources], available: float) -> None:
    wanted = sum(bundle.get(resource, 0) for bundle in bundles)
    if wanted > available + 1e-6:
        raise ValueError(
            f"The run asks for {wanted:g} {resource}s in total and the cluster has {available:g}: lower "
            f"{_keys([resource])} or the number of actors."
        )


def _places(bundle: Resources, node: Resources) -> float:
    """The number of actors with these resources that fit on an empty node; `bundle` names at least one."""
    return math.floor(min(node.get(name, 0) / amount for name, amount in bundle.items()) + 1e-6)


def _keys(resources: Iterable[str]) -> str:
    """The keys of a configuration that ask for these."""
    known = {"CPU": "num_cpus_per_* (fractions are fine)", "GPU": "num_gpus_per_* (fractions are fine)"}
    return " or ".join(dict.fromkeys(known.get(name, "custom_resources_per_*") for name in resources))
