"""Divides GPUs among learners and engines."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rllib_arpo.arpo_config import ARPOConfig


def engine_memory(share: float, shared: bool) -> float:
    """The part of a GPU's memory that an engine with this share of the GPU takes.

    A tenth of the share is for activations; on a GPU that the engine shares with a learner a fifth, since the learner's
    weights and Adam's moments stay there while engines sample.
    """
    return (0.8 if shared else 0.9) * share


def use_gpus(config: ARPOConfig, num_gpus: float) -> None:
    """Divides the cluster's GPUs among the learners and engines of a recipe that also runs without a GPU.

    If there are enough, each learner and each env runner gets its own GPU. Otherwise they share: a single learner
    leaves half of its GPU to all engines, and each of several learners leaves nine tenths to one engine. The engines
    sleep during updates and drop their weights, because new ones follow. Without env runners the engine runs in the
    process of the local learner and gets half of its GPU; remote learners each get a GPU if there are enough.

    Raises:
        ValueError: several learners would have to share a GPU, which NCCL refuses.
    """
    learners, env_runners = config.num_learners, config.num_env_runners
    if env_runners:  # Those for evaluation take as much of a GPU.
        env_runners += config.evaluation_num_env_runners
    if num_gpus < 1 or (learners and not env_runners):
        config.learners(num_gpus_per_learner=int(num_gpus >= max(learners, 1)))
        return
    if env_runners and num_gpus >= max(learners, 1) + env_runners:
        of_learner, of_env_runner, shared = 1.0, 1.0, False
    elif learners > 1 and not learners <= env_runners <= num_gpus:
        raise ValueError(
            f"--num-learners {learners}: with {env_runners} env runners this takes {learners + env_runners} GPUs, and "
            f"there are {num_gpus:g}; to share them in pairs, take no more learners than env runners, and no more env "
            f"runners than GPUs."
        )
    else:
        shared = True
        of_learner, of_env_runner = (0.1, 0.9) if learners > 1 else (0.5, 0.5 / max(env_runners, 1))
    engine = {**config.engine_kwargs, "gpu_memory_utilization": engine_memory(of_env_runner, shared)}
    if not env_runners:  # The learner's process holds both shares.
        of_learner, of_env_runner = 1.0, 0.0
    config.learners(num_gpus_per_learner=of_learner)
    config.env_runners(num_gpus_per_env_runner=of_env_runner)
    config.language_model(engine_kwargs=engine, sleep_level=2 if shared else 0)
