"""The checks of `ARPOConfig.validate()`: they run before any actor starts and raise one sentence that names the key."""

from __future__ import annotations

from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.tune.registry import ENV_CREATOR, _global_registry

from rllib_arpo.envs.registry import ENVIRONMENTS, register_envs, validate_env_config
from rllib_arpo.rollout.make_env import ENV_CONFIG_KEYS, complete_env_config
from rllib_arpo.validation.combinations import check_combinations
from rllib_arpo.validation.engine import check_engine, check_model
from rllib_arpo.validation.keys import check_keys
from rllib_arpo.validation.lora import check_lora
from rllib_arpo.validation.own_classes import check_callbacks, check_rl_module
from rllib_arpo.validation.resources import actor_bundles, check_cluster_resources
from rllib_arpo.validation.rllib_keys import check_rllib_keys

__all__ = ["check_cluster_resources", "check_rllib_keys", "validate"]


def validate(config: AlgorithmConfig) -> None:
    """Checks `config`, whose keys of RLlib `check_rllib_keys` has checked before.

    Raises:
        ValueError: one sentence naming the key.
    """
    check_keys(config)
    check_combinations(config)
    check_engine(config)
    check_model(config.model_name_or_path, config.max_context_tokens)
    check_lora(config)
    check_rl_module(config)
    check_callbacks(config)
    _check_env(config)
    if not config.in_evaluation:
        check_cluster_resources(actor_bundles(config))


def _check_env(config: AlgorithmConfig) -> None:
    if config.env is None:
        raise ValueError("env is required: call .environment('ToolMath-v0', env_config={...}).")
    for key in ENV_CONFIG_KEYS:
        if config.env_config.get(key, getattr(config, key)) != getattr(config, key):
            raise ValueError(f"env_config[{key!r}] contradicts {key}={getattr(config, key)!r}: set {key} alone.")
    if not isinstance(config.env, str):
        return
    if config.env in ENVIRONMENTS:
        register_envs()  # Once more, since Tune forgets the names when Ray shuts down.
    if not _global_registry.contains(ENV_CREATOR, config.env):
        raise ValueError(f"env={config.env!r} is not registered: import its module, or call ray.tune.register_env.")
    validate_env_config(config.env, complete_env_config(config))
