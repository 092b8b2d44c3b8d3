"""Chooses how weights travel from the learners to the engines."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import ray

from rllib_arpo.engine.vllm_versions import FIRST_WITH_TRANSFER, vllm_version

if TYPE_CHECKING:
    from ray.rllib.algorithms.algorithm_config import AlgorithmConfig

#: The value of `weight_sync` for which `choose_transport` decides.
AUTO = "auto"
#: The transport that works with every engine and device.
ARRAYS = "in_process_reload"
#: Fractions of a GPU that differ by less are equal.
_ROUNDING = 1e-6


def choose_transport(config: AlgorithmConfig) -> str:
    """The transport that `weight_sync` names; for "auto", "ipc" or "nccl" if one fits, otherwise arrays.

    "auto" takes arrays if this process has no vLLM, or if evaluation uses another number of GPUs per engine. It also
    takes arrays if Ray gave the learner's process no GPU and there are several: such a learner uses the first one.
    Ray takes fractions on one node from the same GPU, but on several nodes perhaps from several.
    """
    if config.weight_sync != AUTO:
        return str(config.weight_sync)
    of_evaluation = (config.evaluation_config or {}).get("num_gpus_per_env_runner", config.num_gpus_per_env_runner)
    same_gpus = not config.evaluation_num_env_runners or of_evaluation == config.num_gpus_per_env_runner
    placed = config.num_learners > 0 or (ray.is_initialized() and bool(ray.get_gpu_ids()))
    gpus = _gpus_of_nodes()
    fits = {"ipc": len(gpus) <= 1 and (placed or sum(gpus) <= 1), "nccl": placed}
    if config.lora is None and same_gpus and vllm_version() is not None:
        for sync in fits:
            if fits[sync] and next(transfer_refusals(sync, config), None) is None:
                return sync
    return ARRAYS


def _gpus_of_nodes() -> list[float]:
    """The number of GPUs of each node that has some; empty if Ray does not run."""
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]] if ray.is_initialized() else []
    return [resources["GPU"] for resources in nodes if resources.get("GPU")]


def transfer_refusals(sync: str, config: AlgorithmConfig) -> Iterator[str]:
    """Sentences that say why vLLM's weight transfer `sync` does not fit; none if it fits.

    vLLM transfers weights from GPU to GPU, between processes.
    """
    learner, env_runner = config.num_gpus_per_learner, config.num_gpus_per_env_runner
    if config.engine != "vllm":
        yield f"weight_sync={sync!r}: needs engine='vllm', not {config.engine!r}."
    if config.num_env_runners == 0:
        yield f"weight_sync={sync!r}: needs engines in other processes than the learner's, num_env_runners >= 1."
    installed = vllm_version()
    if installed is not None and installed < FIRST_WITH_TRANSFER:
        needed = f"needs vLLM {FIRST_WITH_TRANSFER} or newer, and {installed} is installed"
        yield f"weight_sync={sync!r}: {needed}; use {ARRAYS!r}."
    of_evaluation = (config.evaluation_config or {}).get("engine_kwargs", config.engine_kwargs)
    sizes = [kwargs.get("tensor_parallel_size", 1) for kwargs in (config.engine_kwargs, of_evaluation)]
    if config.evaluation_num_env_runners and sizes[0] != sizes[1]:
        yield f"weight_sync={sync!r}: needs the same tensor_parallel_size in training and evaluation, not {sizes}."
    gpus = f"num_gpus_per_learner={learner:g} and num_gpus_per_env_runner={env_runner:g}"
    if sync == "nccl" and min(learner, env_runner) < 1:
        yield f"weight_sync='nccl': needs separate GPUs, at least one each, not {gpus}."
    if sync == "ipc" and not (0 < learner < 1 and 0 < env_runner < 1):
        yield f"weight_sync='ipc': needs a GPU that is shared, fractions of one, not {gpus}."
    if sync == "ipc" and config.num_learners > 1:
        yield f"weight_sync='ipc': needs one learner beside the engines, not num_learners={config.num_learners}."
    number = config.num_env_runners + config.evaluation_num_env_runners
    if sync == "ipc" and learner + number * env_runner > 1 + _ROUNDING:
        yield f"weight_sync='ipc': needs learner and engines on one GPU, and {number} engines have no room: {gpus}."


def shares_gpu(config: AlgorithmConfig) -> bool:
    """Whether an engine has a GPU that a learner or another engine uses as well."""
    if config.num_env_runners == 0:
        return bool(config.num_gpus_per_learner > 0)
    return bool(0 < config.num_gpus_per_env_runner < 1)
