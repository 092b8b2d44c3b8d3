"""Divides GPUs among learners and engines."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rllib_arpo.arpo_config import ARPOConfig

#: The share of its env runner's GPUs that the engine takes; the rest is for activations.
ENGINE_MEMORY = 0.9
#: The same for a GPU that a learner also uses: the learner's weights and Adam stay there while engines sample.
SHARED_ENGINE_MEMORY = 0.8


def use_gpus(config: ARPOConfig, num_gpus: float) -> None:
    """Divides the cluster's GPUs among the learners and engines of a recipe that also runs without a GPU.

    If there are enough, each learner and each env runner gets its own GPU. Otherwise they share: a single learner
    shares its GPU with all engines, and each of several learners shares with one engine. The learner takes half of the
    memory of a shared GPU. The engines sleep during updates and drop their weights, because new ones follow. Without
    env runners the engine runs in the process of the local learner and uses its GPU; remote learners each get a GPU if
    there are enough.

    Raises:
        ValueError: several learners would have to share a GPU, which NCCL refuses.
    """
    learners, env_runners = config.num_learners, config.num_env_runners
    if num_gpus < 1 or (learners and not env_runners):
        config.learners(num_gpus_per_learner=int(num_gpus >= max(learners, 1)))
        return
    if env_runners and num_gpus >= max(learners, 1) + env_runners:
        of_learner, of_env_runner, engine_memory, sleep_level = 1.0, 1.0, ENGINE_MEMORY, 0
    elif learners > 1 and not learners <= env_runners <= num_gpus:
        raise ValueError(
            f"--num-learners {learners}: with {env_runners} env runners this takes {learners + env_runners} GPUs, and "
            f"there are {num_gpus:g}; to share them in pairs, take no more learners than env runners, and no more env "
            f"runners than GPUs."
        )
    elif learners > 1:
        of_learner, of_env_runner, engine_memory, sleep_level = 0.1, 0.9, SHARED_ENGINE_MEMORY * 0.5, 2
    else:
        of_learner, of_env_runner = (0.5, 0.5 / env_runners) if env_runners else (1.0, 0.0)
        engine_memory, sleep_level = SHARED_ENGINE_MEMORY * 0.5 / max(env_runners, 1), 2
    config.learners(num_gpus_per_learner=of_learner)
    config.env_runners(num_gpus_per_env_runner=of_env_runner)
    config.language_model(
        engine_kwargs={**config.engine_kwargs, "gpu_memory_utilization": engine_memory}, sleep_level=sleep_level
    )
