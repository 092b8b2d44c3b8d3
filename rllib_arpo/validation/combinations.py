"""Checks that keys fit together: those of the tree, of overlap, of the update, of evaluation."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rllib_arpo.core.branching import ENTROPY_RULES
from rllib_arpo.rollout.fork_schedule import OVER_TREE, RANKED

if TYPE_CHECKING:
    from rllib_arpo.arpo_config import ARPOConfig

#: Settings of an engine: evaluation on the training engines cannot have its own (except a shorter context).
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
    _check_entropy(config)
    if config.max_response_tokens > config.max_context_tokens:
        raise ValueError(
            f"max_response_tokens={config.max_response_tokens}: must not exceed "
            f"max_context_tokens={config.max_context_tokens}."
        )


def _check_entropy(config: ARPOConfig) -> None:
    """Refuses settings that the rule ignores; `branching="never"` may ignore all of them, for baselines."""
    if config.branching == "never":
        return
    looks_at_entropy = config.branching in ENTROPY_RULES
    if config.entropy_baseline_quantile is not None and config.entropy_baseline != "running":
        raise ValueError(
            f"entropy_baseline_quantile={config.entropy_baseline_quantile}: belongs to entropy_baseline='running', "
            f"not to {config.entropy_baseline!r}."
        )
    if (
        config.entropy_baseline_questions is not None
        and config.entropy_baseline != "running"
        and config.pre_monitoring_sensitivity is None
    ):
        raise ValueError(
            f"entropy_baseline_questions={config.entropy_baseline_questions}: needs entropy_baseline='running' or a "
            f"pre_monitoring_sensitivity."
        )
    if config.entropy_baseline == "running" and not (looks_at_entropy or config.budget_allocation in RANKED):
        raise ValueError(f"entropy_baseline='running': branching={config.branching!r} does not look at the entropy.")
    if config.branching == "random" and config.budget_allocation in RANKED:
        raise ValueError(f"budget_allocation={config.budget_allocation!r}: branching='random' must ignore the entropy.")
    if config.random_fork_probability is not None and config.branching != "random":
        raise ValueError(
            f"random_fork_probability={config.random_fork_probability}: belongs to branching='random', not to "
            f"{config.branching!r}."
        )
    if config.consecutive_fork_penalty:
        _check_penalty(config)


def _check_penalty(config: ARPOConfig) -> None:
    """The penalty multiplies P and needs the decisions above the node."""
    penalty = f"consecutive_fork_penalty={config.consecutive_fork_penalty}"
    if config.branching not in ENTROPY_RULES:
        raise ValueError(f"{penalty}: branching={config.branching!r} has no P.")
    if config.budget_allocation in OVER_TREE:
        raise ValueError(
            f"{penalty}: with budget_allocation={config.budget_allocation!r} a node may be decided before those "
            f"above it."
        )


def check_overlap(config: ARPOConfig) -> None:
    """Rollouts during the update need a separate process and a correction for the older weights."""
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
    if config.in_evaluation:
        return
    if config.dtype == "float16":
        raise ValueError("dtype='float16': gradients would underflow, since the loss is not scaled; use 'bfloat16'.")
    if config.max_tokens_per_pass < config.max_context_tokens:
        raise ValueError(
            f"max_tokens_per_pass={config.max_tokens_per_pass}: must be at least "
            f"max_context_tokens={config.max_context_tokens}, so that one trajectory fits into a pass."
        )
    if config.kl_in_reward and not config.kl_coeff:
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


def check_advantages(config: ARPOConfig) -> None:
    """Advantages must have their inputs, and must differ from the plainer ones."""
    if config.in_evaluation:
        return
    if config.baseline == "tree" and config.branching == "never":
        raise ValueError("baseline='tree': with branching='never' a tree has one leaf; use 'group', which is the same.")
    if config.entropy_advantage_coeff and config.record_entropies != "all":
        raise ValueError(
            f"entropy_advantage_coeff={config.entropy_advantage_coeff}: needs record_entropies='all', the entropy of "
            f"every token."
        )
    single_step = config.num_epochs == 1 and config.questions_per_minibatch >= config.questions_per_batch
    if config.keep_clipped_gradient and single_step:
        raise ValueError(
            "keep_clipped_gradient=True: an update of a single step clips nothing; set a questions_per_minibatch below "
            "questions_per_batch, or num_epochs > 1."
        )


def check_offload(config: ARPOConfig) -> None:
    if not config.optimizer_offload or config.in_evaluation:
        return
    if not config.num_gpus_per_learner:
        raise ValueError("optimizer_offload=True: the learners have no GPU; set num_gpus_per_learner.")
    if config.sharding != "none":
        raise ValueError(f"optimizer_offload=True: not with sharding={config.sharding!r}, which cuts up Adam's state.")


def check_gpus_of_learners(config: ARPOConfig) -> None:
    """NCCL refuses two ranks on one GPU."""
    if config.in_evaluation:
        return
    if config.num_learners > 1 and 0 < config.num_gpus_per_learner <= 0.5:
        raise ValueError(
            f"num_gpus_per_learner={config.num_gpus_per_learner:g}: Ray may put several of the "
            f"{config.num_learners} learners on one GPU, which NCCL refuses; use num_learners=0, or more than 0.5."
        )


def check_sharding(config: ARPOConfig) -> None:
    if config.sharding == "none" or config.in_evaluation:
        return
    if config.num_learners < 2:
        raise ValueError(
            f"sharding={config.sharding!r}: needs learners to share the model, num_learners >= 2 and not "
            f"{config.num_learners}."
        )


def check_evaluation(config: ARPOConfig) -> None:
    """Without env runners of its own, evaluation uses the training engines."""
    evaluation = config.get_evaluation_config_object()
    if evaluation is None or evaluation.evaluation_num_env_runners:
        return
    for key in ENGINE_KEYS:
        wanted, given = getattr(evaluation, key), getattr(config, key)
        if wanted > given if key == "max_context_tokens" else wanted != given:
            raise ValueError(
                f"evaluation_config: {key}={wanted!r}: evaluation uses the training engines, with "
                f"{key}={given!r}; set evaluation_num_env_runners >= 1."
            )
