"""Divides GPUs among learners and engines."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rllib_arpo.arpo_config import ARPOConfig

#: The engine's part of the GPUs that Ray gives to its env runner; the rest is for activations.
ENGINE_MEMORY = 0.9
#: The engine's part of a GPU that a learner uses as well: the learner's weights and Adam stay while engines sample.
SHARED_ENGINE_MEMORY = 0.8


@dataclass(frozen=True, slots=True)
class GpuShares:
    """Parts of GPUs.

    Attributes:
        learner: `num_gpus_per_learner`.
        env_runner: `num_gpus_per_env_runner`.
        engine_memory: `gpu_memory_utilization` of each engine.
        sleep_level: 1: the engines give their memory to the learner during updates.
    """

    learner: float
    env_runner: float
    engine_memory: float
    sleep_level: int


def gpu_shares(num_gpus: float, num_learners: int, num_env_runners: int) -> GpuShares | None:
    """The parts of learners and engines, as the cluster's GPUs allow; None: there is nothing to divide.

    Each learner and each env runner has a GPU of its own where there are enough. Otherwise the only learner shares
    one with all engines: half of it is the learner's. Without env runners the engine is in the process of a learner
    that is not remote, and uses its GPU.

    Args:
        num_gpus: of the cluster.
        num_learners: 0: one, in the algorithm's process.

    Raises:
        ValueError: several learners would have to share a GPU with engines, which NCCL refuses.
    """
    if num_gpus < 1 or (num_learners and not num_env_runners):
        return None
    if num_env_runners and num_gpus >= max(num_learners, 1) + num_env_runners:
        return GpuShares(learner=1.0, env_runner=1.0, engine_memory=ENGINE_MEMORY, sleep_level=0)
    if num_learners > 1:
        raise ValueError(
            f"--num-learners {num_learners}: with {num_env_runners} env runners this takes "
            f"{num_learners + num_env_runners} GPUs, and there are {num_gpus:g}; one learner can share a GPU."
        )
    if not num_env_runners:
        return GpuShares(learner=1.0, env_runner=0.0, engine_memory=SHARED_ENGINE_MEMORY / 2, sleep_level=1)
    part = 0.5 / num_env_runners
    return GpuShares(learner=0.5, env_runner=part, engine_memory=SHARED_ENGINE_MEMORY * part, sleep_level=1)


def use_gpus(config: ARPOConfig, num_gpus: float) -> None:
    """Divides the cluster's GPUs among the learner and the engines of a recipe that also runs without a GPU.

    Where there is nothing to divide, each learner gets a GPU if there are enough.
    """
    shares = gpu_shares(num_gpus, config.num_learners, config.num_env_runners)
    if shares is None:
        config.learners(num_gpus_per_learner=int(num_gpus >= max(config.num_learners, 1)))
        return
    config.learners(num_gpus_per_learner=shares.learner)
    config.env_runners(num_gpus_per_env_runner=shares.env_runner)
    config.language_model(
        engine_kwargs={**config.engine_kwargs, "gpu_memory_utilization": shares.engine_memory},
        sleep_level=shares.sleep_level,
    )
