"""Checks that the cluster can provide the resources that a configuration needs."""

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby

import ray
from ray._private.resource_and_label_spec import ResourceAndLabelSpec
from ray._private.services import find_bootstrap_address
from ray._private.state import state
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.tune.execution.cluster_info import _is_ray_cluster

from rllib_arpo.learner.placement import SHARES_OF_PAIRS, place_on_gpus

#: KubeRay's operator sets this variable in every pod. Ray does not say whether such a cluster can grow.
KUBERAY = "RAY_CLUSTER_NAME"

Resources = Mapping[str, float]


def actor_bundles(config: AlgorithmConfig) -> list[dict[str, float]]:
    """The resources of each actor that `config` starts, in Ray's order, which ends with the learners.

    The calling process is not counted.
    """
    from ray.rllib.algorithms.utils import _get_env_runner_bundles, _get_learner_bundles

    evaluation = config.get_evaluation_config_object()
    evaluating = [] if evaluation is None else _get_env_runner_bundles(evaluation)
    return [*_get_env_runner_bundles(config), *evaluating, *_get_learner_bundles(config)]


def gpu_shares(config: AlgorithmConfig) -> list[float]:
    """The share of a GPU of each actor, in Ray's order, which ends with the learners."""
    return [bundle["GPU"] for bundle in actor_bundles(config)]


def check_cluster_resources(bundles: Sequence[Resources], strategy: str = "PACK") -> None:
    """Refuses a configuration whose resources the cluster can never provide; Ray would wait for ever.

    A cluster that may grow (an autoscaler's, the cluster launcher's, KubeRay's) is not checked.

    Args:
        bundles: in the order in which Ray asks for them.
        strategy: Ray's placement strategy.

    Raises:
        ValueError: the sentence says what the run needs and what the cluster has.
    """
    if _is_ray_cluster() or KUBERAY in os.environ:
        return
    if ray.is_initialized():
        if getattr(state.get_cluster_config(), "node_group_configs", ()):
            return
        nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    elif (machine := machine_of_next_ray()) is not None:
        nodes = [machine]
    else:
        return
    # GPUs come first: they are what most machines lack.
    for resource in sorted({name for bundle in bundles for name in bundle}, key=lambda name: (name != "GPU", name)):
        _check_sum(resource, bundles, sum(node.get(resource, 0) for node in nodes))
    positive = [{name: amount for name, amount in bundle.items() if amount} for bundle in bundles]
    for bundle in map(dict, dict.fromkeys(tuple(bundle.items()) for bundle in positive if bundle)):
        number = sum(all(other.get(name, 0) >= amount for name, amount in bundle.items()) for other in bundles)
        if number > (places := sum(_places(bundle, node) for node in nodes)):
            wanted = " and ".join(f"{amount:g} {name}" for name, amount in bundle.items())
            raise ValueError(
                f"The run asks for {number} actors with {wanted} each, each actor on one node, and the cluster's "
                f"nodes have room for {places:g}: lower {_keys(bundle)} or the number of actors."
            )
    if strategy == "PACK":
        _check_shares_of_gpus(bundles, nodes)


def machine_of_next_ray() -> Resources | None:
    """What a Ray would have that started here now; None: `ray.init()` would join a cluster that is not known yet."""
    if (os.environ.get("RAY_ADDRESS") or find_bootstrap_address(None) or "local") != "local":
        return None
    return ResourceAndLabelSpec().resolve(is_head=True).to_resource_dict()


def _check_shares_of_gpus(bundles: Sequence[Resources], nodes: Sequence[Resources]) -> None:
    """Refuses shares of GPUs that fit on a node by their sum but not one by one: Ray would retry for ever."""
    for node, packed in _pack(bundles, nodes):
        shares = [bundle.get("GPU", 0.0) for bundle in packed]
        needed = len(set(chain.from_iterable(place_on_gpus(shares))))
        if needed > node.get("GPU", 0):
            order = ", ".join(f"{len(list(same))} x {share:g}" for share, same in groupby(filter(None, shares)))
            raise ValueError(
                f"Ray gives out {order} of a GPU, in this order, and needs {needed} GPUs for it on a node that has "
                f"{node.get('GPU', 0):g}: {SHARES_OF_PAIRS}."
            )


def _pack(bundles: Sequence[Resources], nodes: Sequence[Resources]) -> Iterator[tuple[Resources, list[Resources]]]:
    """Each node with the bundles that Ray's strategy PACK puts there, in their own order.

    PACK fills one node after the other by the sums of resources, and begins with the bundles with the most GPUs.
    """
    waiting = sorted(range(len(bundles)), key=lambda index: -bundles[index].get("GPU", 0))
    for node in sorted(nodes, key=lambda node: -node.get("GPU", 0)):
        left, chosen = dict(node), []
        for index in waiting:
            bundle = bundles[index]
            if all(left.get(name, 0) >= amount - 1e-6 for name, amount in bundle.items()):
                left |= {name: left.get(name, 0) - amount for name, amount in bundle.items()}
                chosen.append(index)
        waiting = [index for index in waiting if index not in chosen]
        yield node, [bundles[index] for index in sorted(chosen)]


def _check_sum(resource: str, bundles: Sequence[Resources], available: float) -> None:
    wanted = sum(bundle.get(resource, 0) for bundle in bundles)
    if wanted > available + 1e-6:
        where = "the cluster" if ray.is_initialized() else "this machine"
        raise ValueError(
            f"The run asks for {wanted:g} {resource}s in total and {where} has {available:g}: lower "
            f"{_keys([resource])} or the number of actors."
        )


def _places(bundle: Resources, node: Resources) -> float:
    """How many actors with these resources fit on an empty node; `bundle` names at least one resource."""
    return math.floor(min(node.get(name, 0) / amount for name, amount in bundle.items()) + 1e-6)


def _keys(resources: Iterable[str]) -> str:
    """The configuration keys that set these resources."""
    known = {"CPU": "num_cpus_per_* (fractions are fine)", "GPU": "num_gpus_per_* (fractions are fine)"}
    return " or ".join(dict.fromkeys(known.get(name, "custom_resources_per_*") for name in resources))
