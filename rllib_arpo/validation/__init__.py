"""The checks of `ARPOConfig.validate()`: they run before any actor starts, and raise a sentence that names the key."""

from functools import cache
from typing import Any

from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.tune.registry import ENV_CREATOR, _global_registry

from rllib_arpo.engine.vllm_versions import FIRST_WITH_MIXTURES, vllm_version
from rllib_arpo.envs.registry import ENVIRONMENTS, register_envs, validate_env_config
from rllib_arpo.policy.checkpoint_names import causal_lm_config
from rllib_arpo.rollout.make_env import ENV_CONFIG_KEYS, complete_env_config
from rllib_arpo.validation.combinations import check_combinations
from rllib_arpo.validation.keys import OF_EVALUATION, check_keys
from rllib_arpo.validation.lora import check_lora
from rllib_arpo.validation.own_classes import check_methods, check_rl_module
from rllib_arpo.validation.resources import actor_bundles, check_cluster_resources

__all__ = ["check_cluster_resources", "check_keys", "validate"]


def validate(config: AlgorithmConfig) -> None:
    """Checks `config` after `check_keys` has checked its keys one by one.

    Raises:
        ValueError: one sentence that names the key.
    """
    check_combinations(config)
    _check_model(config)
    check_lora(config)
    check_rl_module(config)
    check_methods(config)
    _check_env(config)
    if not config.in_evaluation:
        _check_evaluation(config)
        check_cluster_resources(actor_bundles(config), config.placement_strategy)


def _check_evaluation(config: AlgorithmConfig) -> None:
    """Checks the configuration of evaluation now; RLlib would do it only after the engines have started."""
    try:
        validate(config.get_evaluation_config_object())
    except ValueError as error:
        raise ValueError(f"{OF_EVALUATION}{error}") from error


def _check_model(config: AlgorithmConfig) -> None:
    from rllib_arpo.policy.causal_lm import num_experts

    name, wanted, installed = config.model_name_or_path, config.max_context_tokens, vllm_version()
    limit = getattr(_model_config(name), "max_position_embeddings", None)
    if limit is not None and wanted > limit:
        raise ValueError(f"max_context_tokens={wanted}: the model {name!r} reads at most {limit} tokens.")
    is_older = config.engine == "vllm" and installed is not None and installed < FIRST_WITH_MIXTURES
    if is_older and (number := num_experts(_model_config(name))):
        needed = f"needs vLLM {FIRST_WITH_MIXTURES} or newer, and {installed} is installed"
        raise ValueError(f"model_name_or_path={name!r}: a mixture of {number} experts {needed}.")


@cache
def _model_config(name: str) -> Any:
    """The configuration of the causal language model `name`, which ARPO can train."""
    from rllib_arpo.policy.causal_lm import refuse_unsupported_config

    model_config = causal_lm_config(name)
    refuse_unsupported_config(model_config)
    return model_config


def _check_env(config: AlgorithmConfig) -> None:
    if config.env is None:
        raise ValueError("env is required: call .environment('ToolMath-v0', env_config={...}).")
    for key in ENV_CONFIG_KEYS:
        if config.env_config.get(key, getattr(config, key)) != getattr(config, key):
            raise ValueError(f"env_config[{key!r}] contradicts {key}={getattr(config, key)!r}: set only {key}.")
    if not isinstance(config.env, str):
        return
    if config.env in ENVIRONMENTS:
        register_envs()  # Again, since Tune forgets the names when Ray shuts down.
    if not _global_registry.contains(ENV_CREATOR, config.env):
        raise ValueError(f"env={config.env!r} is not registered: import its module, or call ray.tune.register_env.")
    validate_env_config(config.env, complete_env_config(config))
