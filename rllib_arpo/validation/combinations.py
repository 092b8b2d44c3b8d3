"""Which keys must fit together: those of the tree, of overlap, of the update, of evaluation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rllib_arpo.validation.keys import check_integer
from rllib_arpo.weights import transfer_backend

if TYPE_CHECKING:
    from rllib_arpo.arpo_config import ARPOConfig

#: What an engine is made with: evaluation on the engines of training cannot have its own (but a shorter context).
ENGINE_KEYS = (
    "model_name_or_path",
    "dtype",
    "max_context_tokens",
    "engine",
    "engine_kwargs",
    "engine_num_threads",
    "weight_sync",
    "sleep_level",
    "lora",
)


def check_tree(config: ARPOConfig) -> None:
    if config.branching != "never" and config.num_initial_rollouts > config.num_rollouts:
        raise ValueError(
            f"num_initial_rollouts={config.num_initial_rollouts}: must not exceed num_rollouts={config.num_rollouts}."
        )
    if config.branching == "random" and config.random_fork_probability is None:
        raise ValueError("random_fork_probability=None: branching='random' needs a probability; it has no default.")
    if config.max_response_tokens > config.max_context_tokens:
        raise ValueError(
            f"max_response_tokens={config.max_response_tokens}: must not exceed "
            f"max_context_tokens={config.max_context_tokens}."
        )


def check_overlap(config: ARPOConfig) -> None:
    """Rollouts beside the update need a process of their own and a correction for the older weights."""
    if not config.max_weight_lag or config.in_evaluation:
        return
    if not config.num_env_runners:
        raise ValueError(f"max_weight_lag={config.max_weight_lag}: needs num_env_runners >= 1.")
    if config.importance_cap is None:
        raise ValueError(
            f"max_weight_lag={config.max_weight_lag}: needs an importance_cap, which corrects for the older weights."
        )
    if config.deterministic:
        raise ValueError(
            f"deterministic=True: with max_weight_lag={config.max_weight_lag} new weights arrive in the middle of "
            f"trajectories, so that trees depend on timing."
        )


def check_update(config: ARPOConfig) -> None:
    if config.dtype == "float16" and not config.in_evaluation:
        raise ValueError("dtype='float16': gradients would underflow, since the loss is not scaled; use 'bfloat16'.")
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


def check_offload(config: ARPOConfig) -> None:
    if not config.optimizer_offload or config.in_evaluation:
        return
    if not config.num_gpus_per_learner:
        raise ValueError("optimizer_offload=True: the learners have no GPU; set num_gpus_per_learner.")
    if config.sharding != "none":
        raise ValueError(f"optimizer_offload=True: not with sharding={config.sharding!r}, which cuts up Adam's state.")


def check_sharding(config: ARPOConfig) -> None:
    if config.sharding == "none" or config.in_evaluation:
        return
    if config.num_learners < 2:
        raise ValueError(
            f"sharding={config.sharding!r}: needs learners to share the model, num_learners >= 2 and not "
            f"{config.num_learners}."
        )
    if transfer_backend(config.weight_sync):
        raise ValueError(
            f"weight_sync={config.weight_sync!r}: sends the weights that one learner holds, and with "
            f"sharding={config.sharding!r} none holds them all; use 'in_process_reload'."
        )


def check_evaluation(config: ARPOConfig) -> None:
    """Without env runners of its own, evaluation has the engines of training."""
    evaluation = config.get_evaluation_config_object()
    if evaluation is None or evaluation.evaluation_num_env_runners:
        return
    check_integer("evaluation_config: max_context_tokens", evaluation.max_context_tokens, 1)
    for key in ENGINE_KEYS:
        wanted, given = getattr(evaluation, key), getattr(config, key)
        if wanted > given if key == "max_context_tokens" else wanted != given:
            raise ValueError(
                f"evaluation_config: {key}={wanted!r}: evaluation has the engines of training, with "
                f"{key}={given!r}; set evaluation_num_env_runners >= 1."
            )
