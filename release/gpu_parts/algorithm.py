"""The whole algorithm on a random model, as the parts that train have it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import ray
from ray import tune

import rllib_arpo
from release.gpu_parts.engines import DTYPE, engine_kwargs
from release.gpu_parts.sizes import Sizes
from rllib_arpo import ARPOConfig
from tests.helpers.configs import small_config
from tests.helpers.parity_env import ParityEnv

ENV = "Parity-v0"
CONTEXT_TOKENS = 1024


@contextmanager
def ray_running() -> Iterator[None]:
    """With the Ray that is there, or one that ends with the block."""
    begins = not ray.is_initialized()
    if begins:
        ray.init(include_dashboard=False, log_to_driver=False)
    rllib_arpo.register()
    tune.register_env(ENV, ParityEnv)
    try:
        yield
    finally:
        if begins:
            ray.shutdown()


def make_config(folder: str, sizes: Sizes) -> ARPOConfig:
    """Trees with tool calls, forks and rewards that differ; two optimizer steps an iteration. Where it runs is open."""
    training = sizes.training
    config = small_config(folder, "vllm", **engine_kwargs(sizes))
    config.environment(ENV, env_config={"num_turns": training.num_turns})
    config.language_model(dtype=DTYPE, max_context_tokens=CONTEXT_TOKENS)
    config.adaptive_rollout(
        num_rollouts=training.num_trajectories,
        num_initial_rollouts=training.num_trajectories // 2,
        branching="always",
        max_turn_tokens=training.turn_tokens,
        max_response_tokens=CONTEXT_TOKENS,
    )
    config.env_runners(num_envs_per_env_runner=training.num_questions)
    return config.training(
        lr=1e-5, questions_per_batch=training.num_questions, questions_per_minibatch=training.num_questions // 2
    )
