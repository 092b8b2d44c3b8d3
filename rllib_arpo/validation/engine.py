"""Refuses settings that engines, weight transfers or models do not support."""

from __future__ import annotations

from functools import cache

from ray.rllib.algorithms.algorithm_config import AlgorithmConfig

from rllib_arpo.engine.vllm_kwargs import check_vllm_kwargs
from rllib_arpo.engine.vllm_versions import FIRST_WITH_TRANSFER, check_vllm_version, vllm_version
from rllib_arpo.policy.checkpoint_names import causal_lm_config
from rllib_arpo.weights import transfer_backend


def check_engine(config: AlgorithmConfig) -> None:
    """Training samples from the whole distribution: log-probs of a truncated one are not the policy's."""
    for key in ("top_p", "top_k", "min_p"):
        if key in config.engine_kwargs:
            raise ValueError(f"engine_kwargs[{key!r}]: training samples from the whole distribution, without {key}.")
    if config.engine == "vllm":
        _check_vllm(config)
    if transfer_backend(config.weight_sync) and not config.in_evaluation:
        _check_weight_transfer(config)
    if config.sleep_level and config.max_weight_lag:
        raise ValueError(f"sleep_level={config.sleep_level}: with max_weight_lag the engines go on during the update.")


def _check_weight_transfer(config: AlgorithmConfig) -> None:
    """vLLM's weight transfer goes from GPU to GPU, between processes, into idle engines."""
    name, learner, env_runner = config.weight_sync, config.num_gpus_per_learner, config.num_gpus_per_env_runner
    if config.engine != "vllm":
        raise ValueError(f"weight_sync={name!r}: needs engine='vllm', not {config.engine!r}.")
    if config.num_env_runners == 0:
        raise ValueError(
            f"weight_sync={name!r}: needs engines in other processes than the learner's, num_env_runners >= 1."
        )
    if config.max_weight_lag:
        raise ValueError(f"weight_sync={name!r}: needs idle engines; with max_weight_lag use 'in_process_reload'.")
    installed = vllm_version()
    if installed is not None and installed < FIRST_WITH_TRANSFER:
        raise ValueError(
            f"weight_sync={name!r}: needs vLLM {FIRST_WITH_TRANSFER} or newer, and {installed} is installed; use "
            f"'in_process_reload'."
        )
    gpus = f"num_gpus_per_learner={learner:g} and num_gpus_per_env_runner={env_runner:g}"
    if name == "nccl" and min(learner, env_runner) < 1:
        raise ValueError(f"weight_sync='nccl': needs separate GPUs, at least one each, not {gpus}.")
    if name == "ipc" and not (0 < learner < 1 and 0 < env_runner < 1):
        raise ValueError(f"weight_sync='ipc': needs a GPU that is shared, fractions of one, not {gpus}.")
    if name == "ipc" and config.num_learners > 1:
        raise ValueError(
            f"weight_sync='ipc': needs one learner beside the engines, not num_learners={config.num_learners}."
        )


def _check_vllm(config: AlgorithmConfig) -> None:
    if config.dtype == "float64":
        raise ValueError("dtype='float64': vLLM computes in bfloat16, float16 or float32.")
    check_vllm_version()
    check_vllm_kwargs(config.engine_kwargs)
    size, num_gpus = config.engine_kwargs.get("tensor_parallel_size", 1), config.num_gpus_per_env_runner
    if 0 < num_gpus < size and size > 1:
        raise ValueError(
            f"engine_kwargs['tensor_parallel_size']={size}: needs as many GPUs in every env runner, and "
            f"num_gpus_per_env_runner={num_gpus:g}."
        )
    in_learner_process = config.num_env_runners == 0 and config.num_gpus_per_learner > 0
    if config.sleep_level and not (num_gpus > 0 or in_learner_process):
        raise ValueError(
            f"sleep_level={config.sleep_level}: the engines have no GPU to share; set num_gpus_per_env_runner."
        )


def check_model(name: str | None, max_context_tokens: int) -> None:
    if not name:
        raise ValueError("model_name_or_path is required: call .language_model(model_name_or_path=...).")
    limit = _model_context(str(name))
    if limit is not None and max_context_tokens > limit:
        raise ValueError(f"max_context_tokens={max_context_tokens}: the model {name!r} reads at most {limit} tokens.")


@cache
def _model_context(name: str) -> int | None:
    """The longest context of the causal language model `name`; None when its configuration does not say."""
    from rllib_arpo.policy.causal_lm import refuse_unsupported_config

    model_config = causal_lm_config(name)
    refuse_unsupported_config(model_config)
    return getattr(model_config, "max_position_embeddings", None)
