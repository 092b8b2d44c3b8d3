"""Declares the options of `ARPOConfig.training`; RLlib's own keywords are not here."""

from typing import Any

from ray.rllib.algorithms.algorithm_config import AlgorithmConfig

from rllib_arpo.connectors import BATCH
from rllib_arpo.core.advantages import ATTRIBUTIONS, LEAF_WEIGHTINGS, LOSS_AGGREGATIONS
from rllib_arpo.core.credit import CREDITS, credit_of
from rllib_arpo.core.prioritized import num_repeats
from rllib_arpo.learner.metrics import GUARD_LIMITS
from rllib_arpo.learner.sharding import SHARDINGS
from rllib_arpo.options.option import Need, Option, Reader, option
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
        f'one of {", ".join(map(repr, [*CREDITS, BATCH]))}, or "module:function" of an importable function with four '
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
    f"a dict from some of {', '.join(map(repr, GUARD_LIMITS))} to finite numbers > 0 or None",
    _are_limits,
    "dict[str, float | None]",
)


def _clips(name: str, example: Any) -> Need:
    """An algorithm's own clip bounds may stay where an update has a single step."""

    def holds(config: AlgorithmConfig) -> bool:
        value = getattr(config, name)
        is_own = value is not True and value == getattr(type(config)(), name)
        return is_own or config.num_epochs > 1 or config.questions_per_minibatch < config.questions_per_batch

    words = "an update with one step clips nothing; lower questions_per_minibatch, or set num_epochs > 1"
    return Need(words, holds, {name: example, "questions_per_minibatch": 128})


def _one_leaf(name: str, value: str, plain: str) -> Need:
    return Need(
        f"with branching='never' nothing is shared; use {plain!r}, which is the same",
        lambda c: c.branching != "never" or getattr(c, name) != value,
        {name: value, "branching": "never"},
    )


def _judges_equal_returns(baseline: str) -> bool:
    return baseline == BATCH or (baseline in CREDITS and CREDITS[baseline].judges_equal_returns)


def _option(default: Any, doc: str, rule: Rule, *needs: Need) -> Option:
    return option(default, doc, rule, Reader.TRAINING, *needs)


TRAINING = {
    "questions_per_batch": _option(128, "questions per iteration.", at_least(1)),
    "questions_per_minibatch": _option(
        16,
        "questions per optimizer step.",
        at_least(1),
        Need(
            "must divide questions_per_batch={questions_per_batch}, so that no optimizer step has fewer questions",
            lambda c: c.questions_per_batch % min(c.questions_per_minibatch, c.questions_per_batch) == 0,
            {"questions_per_minibatch": 100},
        ),
    ),
    "max_tokens_per_pass": _option(
        16384,
        "unique tokens per forward pass; gradients accumulate over a minibatch's passes.",
        at_least(1),
        Need(
            "must be at least max_context_tokens={max_context_tokens}, since a pass must hold one trajectory",
            lambda c: c.max_tokens_per_pass >= c.max_context_tokens,
            {"max_tokens_per_pass": 500},
        ),
    ),
    "attribution": _option(
        "soft",
        'advantage of a shared token. "soft": each trajectory adds its own; "hard": their mean (paper, section 3.2).',
        name_in(ATTRIBUTIONS),
        _one_leaf("attribution", "hard", "soft"),
    ),
    "leaf_weighting": _option(
        "uniform",
        'how trajectories count. "uniform"; "branch": unbiased if a fork depends only on its response.',
        name_in(LEAF_WEIGHTINGS),
        _one_leaf("leaf_weighting", "branch", "uniform"),
    ),
    "loss_aggregation": _option(
        "token_mean",
        'how the loss averages: "token_mean" (DAPO), "sequence_mean" (GRPO\'s paper) or "constant" (Dr. GRPO).',
        name_in(LOSS_AGGREGATIONS),
    ),
    "clip_low": _option(0.2, "ratios below 1 - clip_low are clipped.", NOT_NEGATIVE, _clips("clip_low", 0.1)),
    "clip_high": _option(0.2, "ratios above 1 + clip_high are clipped.", NOT_NEGATIVE, _clips("clip_high", 0.28)),
    "dual_clip": _option(
        None,
        "upper bound > 1 on the ratio of tokens with negative advantage; None: off.",
        optional(number("a finite number > 1", lambda value: value > 1)),
        _clips("dual_clip", 3.0),
    ),
    "keep_clipped_gradient": _option(
        False,
        "whether a token with positive advantage keeps a gradient above the upper clip bound (AEPO).",
        SWITCH,
        _clips("keep_clipped_gradient", True),
    ),
    "entropy_advantage_coeff": _option(
        0.0,
        "a in the factor max(0, 1 + a z) on a token's advantage, where z is its entropy, standardised over the "
        "minibatch (AEPO); 0: off.",
        NOT_NEGATIVE,
        Need(
            "needs the entropy of every token; set record_entropies='all'",
            lambda c: not c.entropy_advantage_coeff or c.record_entropies == "all",
            {"entropy_advantage_coeff": 0.2},
        ),
    ),
    "kl_coeff": _option(0.0, "coefficient of the k3 KL to the initial model; 0: no KL.", NOT_NEGATIVE),
    "kl_in_reward": _option(
        False,
        "subtracts a per-token k1 KL from the reward instead (REINFORCE++).",
        SWITCH,
        Need(
            "needs kl_coeff > 0",
            lambda c: not c.kl_in_reward or c.kl_coeff > 0,
            {"kl_in_reward": True, "branching": "never"},
        ),
        Need(
            "needs branching='never', since a reward-to-go differs between siblings",
            lambda c: not c.kl_in_reward or c.branching == "never",
            {"kl_in_reward": True, "kl_coeff": 0.1},
        ),
    ),
    "entropy_coeff": _option(0.0, "coefficient of the entropy bonus.", NOT_NEGATIVE),
    "importance_cap": _option(
        2.0,
        "upper limit of a token's weight, which corrects for the gap between engine and learner; None: off.",
        optional(POSITIVE),
    ),
    "gradient_checkpointing": _option(
        "auto",
        'whether the backward pass recomputes layers, except for their attention; "auto": only as many as needed.',
        one_of("auto", True, False),
    ),
    "tree_attention": _option(
        "auto",
        'the learner\'s attention kernel: "path_gather", "varlen" or "auto" (docs/rllib.md, "Attention on trees").',
        one_of("auto", *TREE_KERNELS),
        Need(
            "needs dtype='bfloat16' and learners on GPUs",
            lambda c: c.tree_attention != "varlen" or (c.dtype == "bfloat16" and c.num_gpus_per_learner > 0),
            {"tree_attention": "varlen"},
        ),
    ),
    "learner_compile": _option(
        "auto",
        'what torch.compile compiles. "layers": decoder layers and LM head; "auto": the same on CUDA with a C '
        'compiler, otherwise "none".',
        one_of(*LEARNER_COMPILE),
    ),
    "baseline": _option(
        "group",
        'which rewards a reward is compared with. "group": the question\'s others (GRPO, ARPO); "tree": also those of '
        'its root and forks (Tree-GRPO); "same_state": also those that read the same tool response (GiGPO); "batch": '
        'the whole batch (REINFORCE++); "module:function": your own (docs/design.md, "Credit").',
        BASELINE,
        Need(
            "with branching='never' there are no forks to compare; use 'group', which is the same",
            lambda c: c.branching != "never" or c.baseline not in CREDITS or not CREDITS[c.baseline].needs_forks,
            {"baseline": "tree", "branching": "never"},
        ),
        Need(
            "learns from questions with equal returns, which max_resample_rounds replaces; set it to 0",
            lambda c: not (c.max_resample_rounds and _judges_equal_returns(c.baseline)),
            {"baseline": "batch", "max_resample_rounds": 1},
        ),
    ),
    "returns": _option(
        "total",
        'which rewards judge a token. "total": all of its trajectory (the paper); "to_go": those from its turn on.',
        one_of("total", "to_go"),
        Need(
            "learns from questions with equal returns, which max_resample_rounds replaces; set it to 0",
            lambda c: not (c.max_resample_rounds and c.returns == "to_go"),
            {"returns": "to_go", "max_resample_rounds": 1},
        ),
        Need(
            "needs baseline='group' or 'batch', not {baseline!r}",
            lambda c: c.returns != "to_go" or c.baseline in ("group", BATCH),
            {"returns": "to_go", "baseline": "tree"},
        ),
    ),
    "normalize_std": _option(
        True,
        "divides a question's advantages by the standard deviation of its rewards (not in Dr. GRPO).",
        SWITCH,
        Need(
            "baseline='batch' always divides by the standard deviation of the whole batch; leave it at True",
            lambda c: c.baseline != BATCH or c.normalize_std,
            {"normalize_std": False, "baseline": "batch"},
        ),
    ),
    "overlong_buffer_tokens": _option(
        None,
        "length of DAPO's soft overlong penalty; None: off.",
        optional(at_least(1)),
        Need(
            "must be at most half of max_response_tokens={max_response_tokens}, or short responses are penalised too",
            lambda c: c.overlong_buffer_tokens is None or 2 * c.overlong_buffer_tokens <= c.max_response_tokens,
            {"overlong_buffer_tokens": 2100},
        ),
    ),
    "max_resample_rounds": _option(
        0,
        "how often new questions replace those without signal (DAPO); any left are dropped, unless none has one.",
        at_least(0),
    ),
    "prioritized_share": _option(
        0.0,
        "share of a batch (rounded down) for earlier questions whose pass rates are nearest to one half.",
        number("a number in [0, 1)", lambda value: 0 <= value < 1),
        Need(
            "a batch of {questions_per_batch} repeats no question; raise it, or questions_per_batch",
            lambda c: not c.prioritized_share or num_repeats(c.prioritized_share, c.questions_per_batch) > 0,
            {"prioritized_share": 0.001},
        ),
        Need(
            "with num_rollouts=1 no pass rate is near one half",
            lambda c: not c.prioritized_share or c.num_rollouts > 1,
            {"prioritized_share": 0.5, "num_rollouts": 1, "branching": "never", "baseline": "batch"},
        ),
    ),
    "adam_betas": _option(
        (0.9, 0.95), "AdamW's betas.", Rule("two numbers in [0, 1)", _are_betas, "tuple[float, float]")
    ),
    "weight_decay": _option(0.0, "AdamW's weight decay.", NOT_NEGATIVE),
    "learner_num_threads": _option(
        None, "CPU threads of a learner; None: as many as Ray gives it.", optional(at_least(1))
    ),
    "learner_timeout_s": _option(
        3600.0,
        "seconds after which a remote learner that does not answer ends the run; None: no limit.",
        optional(POSITIVE),
    ),
    "skip_groups_without_signal": _option(True, "skips trees without any advantage, whose gradient is zero.", SWITCH),
    "guards": _option(
        {},
        'learner metric -> limit of its alarm (docs/rllib.md, "Guards"); None: no alarm.',
        GUARDS,
    ),
    "max_error_share": _option(
        0.5,
        "the run ends if a larger share of an iteration's trajectories ends in an error (`stop/error`, "
        "`stop/broken_tool`, `stop/unread_verdict`), or of its questions cannot be asked.",
        PROBABILITY,
    ),
    "max_iterations_without_signal": _option(
        25,
        "the run ends after this many iterations in a row without a question whose rewards differ; None: it goes on.",
        optional(at_least(1)),
    ),
    "sharding": _option(
        "none",
        'what each of several learners holds. "none": the whole model; "fsdp2": a shard of it and of Adam\'s state.',
        name_in(SHARDINGS),
        Need(
            "splits the model between learners; set num_learners >= 2, not {num_learners}",
            lambda c: c.sharding == "none" or c.num_learners >= 2,
            {"sharding": "fsdp2"},
        ),
    ),
    "optimizer_offload": _option(
        False,
        "keeps Adam's moments in CPU memory; a step brings them over part by part. For learners on GPUs.",
        SWITCH,
        Need(
            "the learners have no GPU; set num_gpus_per_learner",
            lambda c: not c.optimizer_offload or c.num_gpus_per_learner > 0,
            {"optimizer_offload": True},
        ),
    ),
}
