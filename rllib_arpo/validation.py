"""What `ARPOConfig.validate()` checks: everything, before any actor starts, in one sentence that names the key."""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray
from ray.tune.registry import ENV_CREATOR, _global_registry

from rllib_arpo.core.advantages import ATTRIBUTIONS, LEAF_WEIGHTINGS, LOSS_AGGREGATIONS
from rllib_arpo.core.branching import BRANCHING_RULES
from rllib_arpo.core.entropy import ENTROPY_ESTIMATORS, ENTROPY_NORMALIZATIONS
from rllib_arpo.engine import ENGINES
from rllib_arpo.engine.vllm_kwargs import check_vllm_kwargs
from rllib_arpo.envs.registry import ENVIRONMENTS, register_envs, validate_env_config
from rllib_arpo.logging.progress import DISPLAYS
from rllib_arpo.rollout.fork_schedule import BUDGET_ALLOCATIONS
from rllib_arpo.rollout.make_env import ENV_CONFIG_KEYS, complete_env_config
from rllib_arpo.weights import WEIGHT_SYNCS, transfer_backend

if TYPE_CHECKING:
    from rllib_arpo.arpo_config import ARPOConfig

#: key -> allowed values.
CHOICES: dict[str, Iterable[str]] = {
    "engine": ENGINES,
    "sleep_level": (0, 1, 2),
    "dtype": ("bfloat16", "float16", "float32", "float64"),
    "branching": BRANCHING_RULES,
    "entropy_estimator": ENTROPY_ESTIMATORS,
    "entropy_normalization": ENTROPY_NORMALIZATIONS,
    "budget_allocation": BUDGET_ALLOCATIONS,
    "attribution": ATTRIBUTIONS,
    "leaf_weighting": LEAF_WEIGHTINGS,
    "loss_aggregation": LOSS_AGGREGATIONS,
    "baseline": ("group", "batch"),
    "deterministic": (True, False),
    "evaluation_parallel_to_training": (False,),
    "evaluation_duration_unit": ("episodes",),
    "custom_evaluation_function": (None,),
    "progress_bar": (True, False, *DISPLAYS),
    "normalize_std": (True, False),
    "kl_in_reward": (True, False),
    "weight_sync": WEIGHT_SYNCS,
    "lora": (None,),
    "gradient_checkpointing": (None, True, False),
    "_env_to_module_connector": (None,),
    "_module_to_env_connector": (None,),
}
#: key -> smallest allowed integer.
MINIMA = {
    "max_context_tokens": 1,
    "num_rollouts": 1,
    "num_initial_rollouts": 1,
    "branch_width": 1,
    "entropy_window": 1,
    "max_tool_calls": 0,
    "max_response_tokens": 1,
    "max_turn_tokens": 1,
    "questions_per_batch": 1,
    "questions_per_minibatch": 1,
    "num_epochs": 1,
    "max_tokens_per_pass": 1,
    "overlong_buffer_tokens": 1,
    "max_resample_rounds": 0,
    "max_weight_lag": 0,
    "engine_num_threads": 1,
    "learner_num_threads": 1,
    "num_envs_per_env_runner": 1,
}
#: key -> (lower bound, whether the bound itself is allowed).
BOUNDS = {
    "temperature": (0.0, False),
    "question_deadline_s": (0.0, False),
    "clip_low": (0.0, True),
    "clip_high": (0.0, True),
    "dual_clip": (1.0, False),
    "kl_coeff": (0.0, True),
    "entropy_coeff": (0.0, True),
    "importance_cap": (0.0, False),
    "branch_entropy_weight": (0.0, False),
    "weight_decay": (0.0, True),
    "deadline_reward": (-math.inf, False),
}
OPTIONAL = {
    "max_turn_tokens", "overlong_buffer_tokens", "dual_clip", "importance_cap", "engine_num_threads",
    "learner_num_threads", "deadline_reward",
}  # fmt: skip
#: Inherited keys that mean nothing here -> what to use instead.
REPLACEMENTS = {
    "train_batch_size": "questions_per_batch",
    "_train_batch_size_per_learner": "questions_per_batch",
    "minibatch_size": "questions_per_minibatch",
    "gamma": "nothing: a trajectory's reward is not discounted",
    "rollout_fragment_length": "questions_per_batch: whole questions are sampled",
    "batch_mode": "nothing: whole questions are sampled",
    "sample_timeout_s": "question_deadline_s",
}
#: Keys that RLlib itself puts into a configuration's dict.
RLLIB_KEYS = {"class"}
#: Keys that RLlib itself changes in the configuration of the evaluation env runners.
CHANGED_FOR_EVALUATION = {"rollout_fragment_length", "batch_mode"}


def validate(config: ARPOConfig) -> None:
    """Checks `config`.

    Raises:
        ValueError: one sentence naming the key.
    """
    defaults = type(config)()
    _check_unknown_keys(vars(config), defaults, "")
    if isinstance(config.evaluation_config, dict):
        _check_unknown_keys(config.evaluation_config, defaults, "evaluation_config: ")
    _check_replaced_keys(config, defaults)
    for key, allowed in CHOICES.items():
        _check_choice(key, getattr(config, key), allowed)
    for key, minimum in MINIMA.items():
        _check_integer(key, getattr(config, key), minimum)
    for key, (bound, inclusive) in BOUNDS.items():
        _check_number(key, getattr(config, key), bound, inclusive)
    _check_tree(config)
    _check_overlap(config)
    _check_update(config)
    _check_engine(config)
    _check_model(config.model_name_or_path, config.max_context_tokens)
    _check_env(config)
    if not config.in_evaluation:
        check_cluster_resources(_actor_bundles(config))


def _check_unknown_keys(keys: Iterable[str], defaults: ARPOConfig, where: str) -> None:
    """`update_from_dict` sets any key; one that no fresh configuration has is a typing error."""
    known = [key for key in vars(defaults) if not key.startswith("_")]
    for key in keys:
        if not key.startswith("_") and key not in RLLIB_KEYS and not hasattr(defaults, key):
            nearest = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
            hint = f" Did you mean {nearest[0]!r}?" if nearest else ""
            raise ValueError(f"{where}{key!r} is no key of {type(defaults).__name__}.{hint}")


def _check_replaced_keys(config: ARPOConfig, defaults: ARPOConfig) -> None:
    for key, replacement in REPLACEMENTS.items():
        if config.in_evaluation and key in CHANGED_FOR_EVALUATION:
            continue
        if getattr(config, key) != getattr(defaults, key):
            raise ValueError(f"{key.removeprefix('_')} has no meaning in {type(config).__name__}; use {replacement}.")


def _check_choice(key: str, value: Any, allowed: Iterable[Any]) -> None:
    if value not in list(allowed):
        names = ", ".join(map(repr, allowed))
        rule = f"so far only {names} is supported" if len(list(allowed)) == 1 else f"must be one of {names}"
        raise ValueError(f"{key.removeprefix('_')}={value!r}: {rule}.")


def _check_integer(key: str, value: Any, minimum: int) -> None:
    if value is None and key in OPTIONAL:
        return
    if not isinstance(value, int) or isinstance(value, bool) or value < minimum:
        raise ValueError(f"{key}={value!r}: must be an integer >= {minimum}.")


def _check_number(key: str, value: Any, bound: float, inclusive: bool) -> None:
    if value is None and key in OPTIONAL:
        return
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if not is_number or not (value >= bound if inclusive else value > bound):
        raise ValueError(f"{key}={value!r}: must be a number {'>=' if inclusive else '>'} {bound:g}.")


def _check_tree(config: ARPOConfig) -> None:
    if config.branching != "never" and config.num_initial_rollouts > config.num_rollouts:
        raise ValueError(
            f"num_initial_rollouts={config.num_initial_rollouts}: must not exceed num_rollouts={config.num_rollouts}."
        )
    probability = config.random_fork_probability
    if config.branching == "random" and probability is None:
        raise ValueError("random_fork_probability=None: branching='random' needs a probability; it has no default.")
    if probability is not None and not 0 <= probability <= 1:
        raise ValueError(f"random_fork_probability={probability!r}: must be in [0, 1].")
    if config.max_response_tokens > config.max_context_tokens:
        raise ValueError(
            f"max_response_tokens={config.max_response_tokens}: must not exceed "
            f"max_context_tokens={config.max_context_tokens}."
        )


def _check_overlap(config: ARPOConfig) -> None:
    """Rollouts beside the update need a process of their own and a correction for the older weights."""
    if not config.max_weight_lag or config.in_evaluation:
        return
    if not config.num_env_runners:
        raise ValueError(f"max_weight_lag={config.max_weight_lag}: needs num_env_runners >= 1.")
    if config.importance_cap is None:
        raise ValueError(
            f"max_weight_lag={config.max_weight_lag}: needs an importance_cap, which corrects for the older weights."
        )


def _check_update(config: ARPOConfig) -> None:
    if config.max_tokens_per_pass < config.max_context_tokens:
        raise ValueError(
            f"max_tokens_per_pass={config.max_tokens_per_pass}: must be at least "
            f"max_context_tokens={config.max_context_tokens}, so that one trajectory fits into a pass."
        )
    if config.kl_in_reward and not config.kl_coeff and not config.in_evaluation:
        raise ValueError("kl_in_reward=True: needs a kl_coeff > 0.")
    if config.kl_in_reward and config.branching != "never":
        raise ValueError("kl_in_reward=True: needs branching='never', since a reward-to-go differs between siblings.")
    if config.grad_clip is None and config.log_gradients:
        raise ValueError("grad_clip=None: RLlib drops all gradients when log_gradients=True has no grad_clip to log.")
    if config.overlong_buffer_tokens is not None and config.overlong_buffer_tokens > config.max_response_tokens:
        raise ValueError(
            f"overlong_buffer_tokens={config.overlong_buffer_tokens}: must not exceed "
            f"max_response_tokens={config.max_response_tokens}."
        )


def _check_engine(config: ARPOConfig) -> None:
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
    if isinstance(config.evaluation_duration, str):
        raise ValueError(f"evaluation_duration={config.evaluation_duration!r}: must be a number of questions.")


def _check_weight_transfer(config: ARPOConfig) -> None:
    """vLLM's weight transfer goes from GPU to GPU, between processes, into engines that are idle."""
    name, learner, env_runner = config.weight_sync, config.num_gpus_per_learner, config.num_gpus_per_env_runner
    if config.engine != "vllm":
        raise ValueError(f"weight_sync={name!r}: is vLLM's own, and engine={config.engine!r}.")
    if config.num_env_runners == 0:
        raise ValueError(
            f"weight_sync={name!r}: needs engines in other processes than the learner's, num_env_runners >= 1."
        )
    if config.max_weight_lag:
        raise ValueError(f"weight_sync={name!r}: needs idle engines; with max_weight_lag use 'in_process_reload'.")
    gpus = f"num_gpus_per_learner={learner:g} and num_gpus_per_env_runner={env_runner:g}"
    if name == "nccl" and min(learner, env_runner) < 1:
        raise ValueError(f"weight_sync='nccl': needs separate GPUs, at least one each, not {gpus}.")
    if name == "ipc" and not (0 < learner < 1 and 0 < env_runner < 1):
        raise ValueError(f"weight_sync='ipc': needs a GPU that is shared, fractions of one, not {gpus}.")
    if name == "ipc" and config.num_learners > 1:
        raise ValueError(
            f"weight_sync='ipc': needs one learner beside the engines, not num_learners={config.num_learners}."
        )


def _check_vllm(config: ARPOConfig) -> None:
    if config.dtype == "float64":
        raise ValueError("dtype='float64': vLLM computes in bfloat16, float16 or float32.")
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


def _check_model(name: str | None, max_context_tokens: int) -> None:
    if not name:
        raise ValueError("model_name_or_path is required: call .language_model(model_name_or_path=...).")
    limit = _model_context(str(name))
    if limit is not None and max_context_tokens > limit:
        raise ValueError(f"max_context_tokens={max_context_tokens}: the model {name!r} reads at most {limit} tokens.")


@cache
def _model_context(name: str) -> int | None:
    """The longest context of the causal language model `name`; None when its configuration does not say."""
    from transformers import AutoConfig
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING

    from rllib_arpo.learner.causal_lm import refuse_unsupported_config

    looks_like_path = name.startswith((".", "~", os.sep)) or name.count("/") > 1
    if looks_like_path and not Path(name).expanduser().is_dir():
        raise ValueError(f"model_name_or_path={name!r}: no such folder.")
    try:
        model_config = AutoConfig.from_pretrained(name)
    except (OSError, ValueError) as error:
        reason = str(error).strip().splitlines()[0]
        raise ValueError(f"model_name_or_path={name!r}: cannot be read as a Hugging Face model ({reason})") from error
    if type(model_config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        raise ValueError(
            f"model_name_or_path={name!r}: a {model_config.model_type!r} model is not a causal language model."
        )
    refuse_unsupported_config(model_config)
    return getattr(model_config, "max_position_embeddings", None)


def _check_env(config: ARPOConfig) -> None:
    if config.env is None:
        raise ValueError("env is required: call .environment('ToolMath-v0', env_config={...}).")
    for key in ENV_CONFIG_KEYS:
        if config.env_config.get(key, getattr(config, key)) != getattr(config, key):
            raise ValueError(f"env_config[{key!r}] contradicts {key}={getattr(config, key)!r}: set {key} alone.")
    if not isinstance(config.env, str):
        return
    if config.env in ENVIRONMENTS:
        register_envs()  # Again: Tune forgets the names when Ray is shut down.
    if not _global_registry.contains(ENV_CREATOR, config.env):
        raise ValueError(f"env={config.env!r} is not registered: import its module, or call ray.tune.register_env.")
    validate_env_config(config.env, complete_env_config(config))


def _actor_bundles(config: ARPOConfig) -> list[dict[str, float]]:
    """What the actors that `config` starts ask for; the calling process itself is not counted."""
    from ray.rllib.algorithms.utils import _get_env_runner_bundles, _get_learner_bundles

    evaluation = {
        "CPU": config.evaluation_num_env_runners * config.num_cpus_per_env_runner,
        "GPU": config.evaluation_num_env_runners * config.num_gpus_per_env_runner,
    }
    return [*_get_env_runner_bundles(config), evaluation, *_get_learner_bundles(config)]


def check_cluster_resources(bundles: Iterable[dict[str, float]]) -> None:
    """Refuses what the cluster can never give; Ray would wait for it without end.

    Raises:
        ValueError: with the sum that is asked for and what there is.
    """
    if not ray.is_initialized():
        return
    available = ray.cluster_resources()
    bundles = list(bundles)
    for resource, keys in (("CPU", "num_cpus_per_*"), ("GPU", "num_gpus_per_*")):
        wanted = sum(bundle.get(resource, 0) for bundle in bundles)
        if wanted > available.get(resource, 0) + 1e-6:
            raise ValueError(
                f"The run asks for {wanted:g} {resource}s in total and the cluster has "
                f"{available.get(resource, 0):g}: lower {keys} (fractions are fine) or the number of actors."
            )
