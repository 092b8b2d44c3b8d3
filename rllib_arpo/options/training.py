"""The options of `ARPOConfig.training`, beside RLlib's own keywords."""

from functools import partial
from typing import Any

from ray.rllib.algorithms.algorithm_config import AlgorithmConfig

from rllib_arpo.connectors import BATCH
from rllib_arpo.core.advantages import ATTRIBUTIONS, LEAF_WEIGHTINGS, LOSS_AGGREGATIONS
from rllib_arpo.core.credit import CREDITS, credit_of
from rllib_arpo.learner.metrics import GUARD_LIMITS
from rllib_arpo.learner.sharding import SHARDINGS
from rllib_arpo.options.option import Need, Option, Reader
from rllib_arpo.options.rules import (
    NOT_NEGATIVE,
    POSITIVE,
    PROBABILITY,
    SWITCH,
    Rule,
    at_least,
    name_in,
    number,
    one_of,
    optional,
    takes,
)
from rllib_arpo.policy.attention.tree import TREE_KERNELS
from rllib_arpo.policy.compilation import LEARNER_COMPILE


def _are_betas(value: object) -> bool:
    if not isinstance(value, tuple | list) or len(value) != 2:
        return False
    return all(isinstance(beta, int | float) and 0 <= beta < 1 for beta in value)


def _is_baseline(value: object) -> bool:
    if not isinstance(value, str) or ":" not in value:
        return isinstance(value, str) and value in (*CREDITS, BATCH)
    try:
        return takes(credit_of(value), 4)
    except Exception as error:  # Of the user's module.
        raise ValueError(f"baseline={value!r} cannot be imported ({error}).") from error


BASELINE = Rule(
    lambda: (
        f'one of {", ".join(map(repr, [*CREDITS, BATCH]))}, or "module:function" that can be imported, of four '
        "arguments"
    ),
    _is_baseline,
    "str",
)


def _are_limits(value: object) -> bool:
    return isinstance(value, dict) and all(
        metric in GUARD_LIMITS and optional(POSITIVE).test(limit) for metric, limit in value.items()
    )


GUARDS = Rule(
    f"a dict with finite numbers > 0, or None, for some of {', '.join(map(repr, GUARD_LIMITS))}",
    _are_limits,
    "dict[str, float | None]",
)
_SMALLER = "set a questions_per_minibatch below questions_per_batch"


def _clips(name: str, example: Any) -> Need:
    """The clip bounds that an algorithm has by itself may stay where an update has a single step."""

    def holds(config: AlgorithmConfig) -> bool:
        value = getattr(config, name)
        is_own = value is not True and value == getattr(type(config)(), name)
        return is_own or config.num_epochs > 1 or config.questions_per_minibatch < config.questions_per_batch

    words = f"an update of a single step clips nothing; {_SMALLER}, or num_epochs > 1"
    return Need(words, holds, {name: example, "questions_per_minibatch": 128})


def _one_leaf(name: str, value: str, plain: str) -> Need:
    return Need(
        f"with branching='never' a tree has one leaf; use {plain!r}, which is the same",
        lambda c: c.branching != "never" or getattr(c, name) != value,
        {name: value, "branching": "never"},
    )


def _judges_equal_returns(baseline: str) -> bool:
    return baseline == BATCH or (baseline in CREDITS and CREDITS[baseline].judges_equal_returns)


_option = partial(Option, reader=Reader.TRAINING)

TRAINING = {
    "questions_per_batch": _option(128, "questions per iteration.", at_least(1)),
    "questions_per_minibatch": _option(16, "questions per optimizer step.", at_least(1)),
    "max_tokens_per_pass": _option(
        16384,
        "unique tokens per forward pass; gradients accumulate over the passes of a minibatch.",
        at_least(1),
        needs=(
            Need(
                "must be at least max_context_tokens={max_context_tokens}, so that one trajectory fits into a pass",
                lambda c: c.max_tokens_per_pass >= c.max_context_tokens,
                {"max_tokens_per_pass": 500},
            ),
        ),
    ),
    "attribution": _option(
        "soft",
        '"soft" or "hard" advantages of shared tokens (paper, section 3.2).',
        name_in(ATTRIBUTIONS),
        needs=(_one_leaf("attribution", "hard", "soft"),),
    ),
    "leaf_weighting": _option(
        "uniform",
        '"uniform", or "branch", which is unbiased if each fork is decided by its own node alone.',
        name_in(LEAF_WEIGHTINGS),
        needs=(_one_leaf("leaf_weighting", "branch", "uniform"),),
    ),
    "loss_aggregation": _option(
        "token_mean",
        '"token_mean" (DAPO), "sequence_mean" (GRPO\'s paper) or "constant" (Dr. GRPO).',
        name_in(LOSS_AGGREGATIONS),
    ),
    "clip_low": _option(0.2, "ratios below 1 - clip_low are clipped.", NOT_NEGATIVE, needs=(_clips("clip_low", 0.1),)),
    "clip_high": _option(
        0.2, "ratios above 1 + clip_high are clipped.", NOT_NEGATIVE, needs=(_clips("clip_high", 0.28),)
    ),
    "dual_clip": _option(
        None,
        "bound c > 1 on the ratio of tokens with negative advantage; None: off.",
        optional(number("a finite number > 1", lambda value: value > 1)),
        needs=(_clips("dual_clip", 3.0),),
    ),
    "keep_clipped_gradient": _option(
        False,
        "whether a token of positive advantage keeps the gradient (1 + clip_high) A d ln pi above the upper bound"
        " (AEPO); otherwise it has none there.",
        SWITCH,
        needs=(_clips("keep_clipped_gradient", True),),
    ),
    "entropy_advantage_coeff": _option(
        0.0,
        "a of the factor max(0, 1 + a z) on a token's advantage, z its entropy among those of the minibatch (AEPO); 0: "
        'off. Needs record_entropies="all".',
        NOT_NEGATIVE,
        needs=(
            Need(
                "needs record_entropies='all', the entropy of every token",
                lambda c: not c.entropy_advantage_coeff or c.record_entropies == "all",
                {"entropy_advantage_coeff": 0.2},
            ),
        ),
    ),
    "kl_coeff": _option(0.0, "coefficient of the k3 KL to the initial model; 0: no KL.", NOT_NEGATIVE),
    "kl_in_reward": _option(
        False,
        'subtract a per-token k1 KL from the reward instead (REINFORCE++); needs branching="never".',
        SWITCH,
        needs=(
            Need(
                "needs a kl_coeff > 0",
                lambda c: not c.kl_in_reward or c.kl_coeff > 0,
                {"kl_in_reward": True, "branching": "never"},
            ),
            Need(
                "needs branching='never', since a reward-to-go differs between siblings",
                lambda c: not c.kl_in_reward or c.branching == "never",
                {"kl_in_reward": True, "kl_coeff": 0.1},
            ),
        ),
    ),
    "entropy_coeff": _option(0.0, "coefficient of the entropy bonus.", NOT_NEGATIVE),
    "importance_cap": _option(
        2.0,
        "the largest weight that corrects a token for the gap between engine and learner; None: no correction.",
        optional(POSITIVE),
    ),
    "gradient_checkpointing": _option(
        "auto",
        'whether the backward pass computes activations again; "auto": only if those of max_tokens_per_pass '
        "tokens do not fit into the memory of the learner's GPU or machine.",
        one_of("auto", True, False),
    ),
    "tree_attention": _option(
        "auto",
        'the learner\'s kernel: "path_gather", "varlen" or "auto" (docs/rllib.md, "Attention on trees").',
        one_of("auto", *TREE_KERNELS),
    ),
    "learner_compile": _option(
        "auto",
        'what torch.compile compiles in the learner: "layers" (decoder layers and LM head), "none", or "auto": '
        '"layers" on CUDA, if there is a C compiler, otherwise "none".',
        one_of(*LEARNER_COMPILE),
    ),
    "baseline": _option(
        "group",
        'what a reward is compared with: "group": the question\'s others (GRPO, ARPO), "tree": the question\'s others, '
        'and those of its own root and forks (Tree-GRPO), "same_state": the question\'s others, and those that read '
        'the same tool response (GiGPO), "batch": all of the batch (REINFORCE++), or "module:function": '
        'docs/design.md, "Credit".',
        BASELINE,
        needs=(
            Need(
                "with branching='never' a tree has one leaf; use 'group', which is the same",
                lambda c: c.branching != "never" or c.baseline not in CREDITS or not CREDITS[c.baseline].needs_forks,
                {"baseline": "tree", "branching": "never"},
            ),
            Need(
                "not with max_resample_rounds, which takes equal returns for no signal",
                lambda c: not (c.max_resample_rounds and _judges_equal_returns(c.baseline)),
                {"baseline": "batch", "max_resample_rounds": 1},
            ),
        ),
    ),
    "returns": _option(
        "total",
        'which rewards judge a token: "total": all of its trajectory (the paper); "to_go": those paid from its '
        "turn on. Both are the same if only the last turn is paid.",
        one_of("total", "to_go"),
        needs=(
            Need(
                "not with max_resample_rounds, which takes equal returns for a group without a signal",
                lambda c: not (c.max_resample_rounds and c.returns == "to_go"),
                {"returns": "to_go", "max_resample_rounds": 1},
            ),
            Need(
                "not with baseline={baseline!r}; use 'group' or 'batch'",
                lambda c: c.returns != "to_go" or c.baseline in ("group", BATCH),
                {"returns": "to_go", "baseline": "tree"},
            ),
        ),
    ),
    "normalize_std": _option(
        True,
        "whether a question's advantages are divided by the standard deviation of its rewards (not in Dr. GRPO).",
        SWITCH,
        needs=(
            Need(
                "baseline='batch' divides by the standard deviation of the whole batch",
                lambda c: c.baseline != BATCH or c.normalize_std,
                {"normalize_std": False, "baseline": "batch"},
            ),
        ),
    ),
    "overlong_buffer_tokens": _option(
        None,
        "length of DAPO's soft overlong penalty; None: off.",
        optional(at_least(1)),
        needs=(
            Need(
                "must not exceed max_response_tokens={max_response_tokens}",
                lambda c: c.overlong_buffer_tokens is None or c.overlong_buffer_tokens <= c.max_response_tokens,
                {"overlong_buffer_tokens": 5000},
            ),
        ),
    ),
    "max_resample_rounds": _option(
        0,
        "how often questions without signal are replaced by new ones (DAPO); those that are still without signal "
        "then are left out.",
        at_least(0),
    ),
    "adam_betas": _option(
        (0.9, 0.95), "the betas of AdamW.", Rule("two numbers in [0, 1)", _are_betas, "tuple[float, float]")
    ),
    "weight_decay": _option(0.0, "the weight decay of AdamW.", NOT_NEGATIVE),
    "learner_num_threads": _option(
        None, "CPU threads of a learner; None takes what Ray allots to it.", optional(at_least(1))
    ),
    "learner_timeout_s": _option(
        3600.0,
        "seconds after which a remote learner that has not finished an update (or another call) counts as dead, "
        "and the run ends; None: no limit.",
        optional(POSITIVE),
    ),
    "skip_groups_without_signal": _option(
        True, "whether trees without any advantage, whose gradient is zero, are left out of the computation.", SWITCH
    ),
    "guards": _option(
        {},
        "metric of the learner -> the limit of its alarm, instead of the default (`learner/metrics.py`); a limit "
        "of None switches the alarm off.",
        GUARDS,
    ),
    "max_error_share": _option(
        0.5,
        "the run ends if a larger share of the trajectories of an iteration or evaluation ends in an error "
        "(`stop/error`, `stop/broken_tool`, `stop/unread_verdict`).",
        PROBABILITY,
    ),
    "max_iterations_without_signal": _option(
        25,
        "ends the run after this many iterations in a row in which no question has rewards that differ; the first"
        " few warn. None: never.",
        optional(at_least(1)),
    ),
    "sharding": _option(
        "none",
        'what each of several learners holds: "none": the whole model; "fsdp2": a part of the model and of Adam\'s'
        " state.",
        name_in(SHARDINGS),
        needs=(
            Need(
                "needs learners to share the model, num_learners >= 2 and not {num_learners}",
                lambda c: c.sharding == "none" or c.num_learners >= 2,
                {"sharding": "fsdp2"},
            ),
        ),
    ),
    "optimizer_offload": _option(
        False,
        "whether Adam's state stays in the CPU's memory except during optimizer steps; for learners on GPUs.",
        SWITCH,
        needs=(
            Need(
                "the learners have no GPU; set num_gpus_per_learner",
                lambda c: not c.optimizer_offload or c.num_gpus_per_learner > 0,
                {"optimizer_offload": True},
            ),
            Need(
                "not with sharding={sharding!r}, which cuts up Adam's state",
                lambda c: not c.optimizer_offload or c.sharding == "none",
                {"optimizer_offload": True, "sharding": "fsdp2", "num_learners": 2, "num_gpus_per_learner": 1},
            ),
        ),
    ),
}
