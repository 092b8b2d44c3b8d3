"""Builds the environment that a configuration names."""

from typing import Any

from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.env.env_context import EnvContext
from ray.tune.registry import ENV_CREATOR, _global_registry

from rllib_arpo.envs.errors import ContractError, DataError
from rllib_arpo.envs.forkable_env import ForkableMultiAgentEnv
from rllib_arpo.envs.support.texts import first_line

#: Config attributes that every environment gets in its `env_config`, besides the user's own keys.
ENV_CONFIG_KEYS = (
    "model_name_or_path",
    "max_context_tokens",
    "max_response_tokens",
    "max_turn_tokens",
    "max_tool_calls",
)


def complete_env_config(config: AlgorithmConfig) -> dict[str, Any]:
    """The user's `env_config`, completed by `ENV_CONFIG_KEYS` and the seed; the user's values take precedence."""
    shared = {key: getattr(config, key) for key in ENV_CONFIG_KEYS}
    return {**shared, "seed": config.seed or 0, **config.env_config}


def env_context(config: AlgorithmConfig, worker_index: int, vector_index: int = 0) -> EnvContext:
    """The configuration of an environment; `vector_index` is its number in the env runner's pool."""
    return EnvContext(
        complete_env_config(config),
        worker_index=worker_index,
        vector_index=vector_index,
        num_workers=config.num_env_runners,
    )


def make_env(config: AlgorithmConfig, worker_index: int = 0, vector_index: int = 0) -> ForkableMultiAgentEnv:
    """Builds the environment that `config` names; `vector_index` is its number in the env runner's pool.

    Raises:
        DataError: the environment cannot be made.
    """
    context = env_context(config, worker_index, vector_index)
    try:
        if isinstance(config.env, str):
            return _global_registry.get(ENV_CREATOR, config.env)(context)
        return config.env(context)
    except DataError:
        raise
    except Exception as error:
        kind = type(error).__name__
        raise ContractError(f"env={config.env!r} cannot be made: {kind}: {first_line(error)}.") from error
