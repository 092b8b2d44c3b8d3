"""The options of `ARPOConfig`'s methods, beside RLlib's own keys."""

from rllib_arpo.connectors import BATCH
from rllib_arpo.core.advantages import ATTRIBUTIONS, LEAF_WEIGHTINGS, LOSS_AGGREGATIONS
from rllib_arpo.core.branching import AUTO, AUTO_SHARE, BRANCHING_RULES, WIDE, BranchingParams
from rllib_arpo.core.credit import CREDITS, credit_of
from rllib_arpo.core.entropy import ENTROPY_ESTIMATORS, ENTROPY_NORMALIZATIONS
from rllib_arpo.engine import ENGINES
from rllib_arpo.engine.engine import RECORD_ENTROPIES
from rllib_arpo.learner.sharding import SHARDINGS
from rllib_arpo.options.option import (
    FINITE,
    FRACTION,
    NOT_NEGATIVE,
    POSITIVE,
    PROBABILITY,
    SWITCH,
    Option,
    Rule,
    a_dict,
    at_least,
    name_in,
    number,
    one_of,
    optional,
    or_name,
    takes,
)
from rllib_arpo.policy.attention.tree import TREE_KERNELS
from rllib_arpo.policy.compilation import COMPILED_PARTS
from rllib_arpo.rollout.fork_schedule import BUDGET_ALLOCATIONS
from rllib_arpo.rollout.progress import INTERVALS_S, progress_mode
from rllib_arpo.weights import WEIGHT_SYNCS

#: The defaults of the fork rule, which the core states.
FORK_RULE = BranchingParams()


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
)

LANGUAGE_MODEL = {
    "model_name_or_path": Option(None, "a Hugging Face id or folder of a causal language model. Required."),
    "dtype": Option(
        "bfloat16",
        "compute dtype of engine and learner; the learner's master weights are fp32.",
        one_of("bfloat16", "float16", "float32", "float64"),
    ),
    "max_context_tokens": Option(4096, "prompt plus response, at most.", at_least(1)),
    "engine": Option("vllm", '"vllm" or "scripted" (a toy for tests).', name_in(ENGINES)),
    "engine_kwargs": Option({}, "further arguments of the engine; for vLLM: its `EngineArgs`.", a_dict()),
    "engine_num_threads": Option(
        None, "CPU threads of the engine; None takes what Ray allots to the env runner.", optional(at_least(1))
    ),
    "weight_sync": Option(
        "auto",
        "how the learner's weights reach the engines: \"in_process_reload\" (arrays, through Ray's object store where "
        'processes differ), vLLM\'s weight transfer "nccl" (between separate GPUs) or "ipc" (on a shared one), or '
        '"auto": "ipc" or "nccl" where it fits, otherwise arrays.',
        name_in(WEIGHT_SYNCS),
    ),
    "sleep_level": Option(
        0,
        "for an engine that shares its GPU with the learner: during an update it gives up its memory, with the weights "
        "kept in the CPU's memory (1) or dropped, since new ones follow (2); 0: never.",
        one_of(0, 1, 2),
    ),
    "lora": Option(
        None,
        'None trains all weights. A dict of keywords of `peft.LoraConfig`, such as {"r": 8, "lora_alpha": 16, '
        '"target_modules": "all-linear"}, trains an adapter alone: it is what is synced and checkpointed, and the '
        "frozen base, which is held in `dtype`, is the reference of the KL.",
    ),
}

ADAPTIVE_ROLLOUT = {
    "num_rollouts": Option(16, "M, trajectories per question.", at_least(1)),
    "num_initial_rollouts": Option(
        8, "N, how many of them start at the prompt; the other M - N are forks or top-ups.", at_least(1)
    ),
    "branching": Option(
        FORK_RULE.branching,
        '"threshold" (fork iff P > tau), "probability", "random" (the control), "permuted" (the control at equal '
        'depth: fork iff P of a random response of earlier questions at the same depth > tau), "always" (at every '
        'node: `budget_allocation` chooses) or "never" (GRPO).',
        name_in(BRANCHING_RULES),
    ),
    "branch_width": Option(
        FORK_RULE.branch_width,
        'Z, children per fork; "wide": (M - N) / N, rounded up, so that the first responses that are forked share the '
        "whole budget.",
        or_name(at_least(1), WIDE),
    ),
    "entropy_window": Option(20, "k, tokens after a tool response whose entropy is compared.", at_least(1)),
    "entropy_estimator": Option(
        "exact",
        '"exact": over the whole vocabulary; "top_k": over the ten likeliest tokens, as in the authors\' code.',
        name_in(ENTROPY_ESTIMATORS),
    ),
    "entropy_normalization": Option(
        "sum_log_vocab",
        '"sum_log_vocab" (sum over the window / ln V, the authors\' code), "mean_log_vocab" (mean / ln V) or "vocab" '
        "(sum / V, the paper's words).",
        name_in(ENTROPY_NORMALIZATIONS),
    ),
    "entropy_baseline": Option(
        "initial",
        'what the entropy after a tool response is compared with: "initial" (the paper: the first tokens of the root), '
        'or "running": the mean of that after the same tool\'s responses in earlier questions.',
        one_of("initial", "running"),
    ),
    "entropy_baseline_questions": Option(
        None,
        'how many of the last questions count for "running", "permuted", branch_threshold="auto" and '
        "pre-monitoring; None: `questions_per_batch`.",
        optional(at_least(1)),
    ),
    "record_entropies": Option(
        "windows",
        'which entropies episodes keep: "windows": of a turn\'s first k tokens; "all": of all generated tokens. '
        "Fork decisions look at the first k in both cases.",
        name_in(RECORD_ENTROPIES),
    ),
    "branch_base_probability": Option(
        FORK_RULE.branch_base_probability, "alpha of P = alpha + beta * dH.", PROBABILITY
    ),
    "branch_entropy_weight": Option(FORK_RULE.branch_entropy_weight, "beta of P.", POSITIVE),
    "branch_threshold": Option(
        FORK_RULE.branch_threshold,
        'tau, which P must exceed; "auto": tau follows dH of the last `entropy_baseline_questions` questions, so that '
        "`branch_share` of the tool responses exceed it.",
        or_name(FINITE, AUTO),
    ),
    "branch_share": Option(
        None,
        f'of branch_threshold="auto": the share of tool responses that fork while forks are left; None: {AUTO_SHARE}.',
        optional(FRACTION),
    ),
    "random_fork_probability": Option(
        FORK_RULE.random_fork_probability, 'the probability of branching="random".', optional(PROBABILITY)
    ),
    "consecutive_fork_penalty": Option(
        FORK_RULE.consecutive_fork_penalty,
        "c of AEPO's factor 1 - min(c l, 1) on P, where l nodes directly above were forked.",
        PROBABILITY,
    ),
    "pre_monitoring_sensitivity": Option(
        None,
        "beta of AEPO's choice of N per question, N = M sigma(beta (H_root - H_tool)), from batch 2 + `max_weight_lag` "
        "on; None: `num_initial_rollouts` for every question.",
        optional(POSITIVE),
    ),
    "budget_allocation": Option(
        "first_come",
        'which nodes get the forks when the budget is short: "first_come"; "ranked": the largest rises among a '
        "question's nodes of the same turn, decided when all its live trajectories have passed the turn; "
        '"ranked_over_tree": the largest rises of the question, decided when all its trajectories have ended, so that '
        'a question lasts about twice as long; "random_over_tree": random nodes, decided at the same time (Tree-GRPO).',
        name_in(BUDGET_ALLOCATIONS),
    ),
    "max_tool_calls": Option(3, "executed tool calls of a path, at most.", at_least(0)),
    "max_response_tokens": Option(4096, "generated plus tool tokens of a path, at most.", at_least(1)),
    "max_turn_tokens": Option(
        None, "generated tokens of one turn, at most; None: no own limit.", optional(at_least(1))
    ),
    "temperature": Option(1.0, "of sampling; all log-probs are at this temperature.", POSITIVE),
    "question_deadline_s": Option(
        600.0,
        "seconds after which a question's unfinished trajectories are cut off: they keep their whole turns, but "
        "not the turn that is being generated.",
        POSITIVE,
    ),
    "deadline_reward": Option(
        None,
        "the reward of a trajectory that the deadline cuts off. None masks it: it is neither in the group mean nor in "
        "the loss. With a number, one with a whole turn of its own counts, and its last turn is paid this reward, "
        "unless a fork that counts shares it; a fork counts once its first turn was answered.",
        optional(FINITE),
    ),
    "on_bad_row": Option(
        "raise",
        'what a row of the data does that cannot be asked (no answer, a prompt that is too long): "raise" ends the run '
        'with file and row; "skip" leaves the question out and counts it (`questions_given_up`). The first row is '
        "checked at the start.",
        one_of("raise", "skip"),
    ),
    "max_weight_lag": Option(
        0,
        "how many updates the weights that sample may be behind those that are trained. 0: strictly on-policy. With L "
        ">= 1 the next L batches are sampled during the update, engines take new weights in the middle of a "
        "trajectory, every token keeps the version that sampled it, and `importance_cap` corrects; ARPO asks a "
        "question again if its weights exceed the bound.",
        at_least(0),
    ),
    "deterministic": Option(
        False,
        "the same weights and questions give the same trees, whatever the timing: forks are decided turn by turn in "
        'the order of agent ids (or "ranked"), and every request has its own seed, made from the run\'s '
        "`debugging(seed=)`, question, agent id and turn. A deadline still depends on the clock.",
        SWITCH,
    ),
}

TRAINING = {
    "questions_per_batch": Option(128, "questions per iteration.", at_least(1)),
    "questions_per_minibatch": Option(16, "questions per optimizer step.", at_least(1)),
    "max_tokens_per_pass": Option(
        16384, "unique tokens per forward pass; gradients accumulate over the passes of a minibatch.", at_least(1)
    ),
    "attribution": Option(
        "soft", '"soft" or "hard" advantages of shared tokens (paper, section 3.2).', name_in(ATTRIBUTIONS)
    ),
    "leaf_weighting": Option(
        "uniform", '"uniform", or "branch" (unbiased under node-local fork decisions).', name_in(LEAF_WEIGHTINGS)
    ),
    "loss_aggregation": Option(
        "token_mean",
        '"token_mean" (DAPO), "sequence_mean" (GRPO\'s paper) or "constant" (Dr. GRPO).',
        name_in(LOSS_AGGREGATIONS),
    ),
    "clip_low": Option(0.2, "ratios below 1 - clip_low are clipped.", NOT_NEGATIVE),
    "clip_high": Option(0.2, "ratios above 1 + clip_high are clipped.", NOT_NEGATIVE),
    "dual_clip": Option(
        None,
        "bound c > 1 on the ratio of tokens with negative advantage; None: off.",
        optional(number("a finite number > 1", lambda value: value > 1)),
    ),
    "keep_clipped_gradient": Option(
        False,
        "a token of positive advantage keeps the gradient (1 + clip_high) A d ln pi above the upper bound (AEPO); "
        "False: it has none there.",
        SWITCH,
    ),
    "entropy_advantage_coeff": Option(
        0.0,
        "a of the factor max(0, 1 + a z) on a token's advantage, z its entropy among those of the minibatch (AEPO); 0: "
        'off. Needs record_entropies="all".',
        NOT_NEGATIVE,
    ),
    "kl_coeff": Option(0.0, "coefficient of the k3 KL to the initial model; 0: no KL.", NOT_NEGATIVE),
    "kl_in_reward": Option(
        False,
        'subtract a per-token k1 KL from the reward instead (REINFORCE++); needs branching="never".',
        SWITCH,
    ),
    "entropy_coeff": Option(0.0, "coefficient of the entropy bonus.", NOT_NEGATIVE),
    "importance_cap": Option(
        2.0, "bound on the engine-to-learner importance weight; None: no correction.", optional(POSITIVE)
    ),
    "gradient_checkpointing": Option(
        "auto",
        'compute activations again in the backward pass; "auto": only where those of max_tokens_per_pass tokens would '
        "not fit into the memory of the learner's GPU or machine.",
        one_of("auto", True, False),
    ),
    "tree_attention": Option(
        "auto",
        'the learner\'s kernel: "path_gather", "varlen" or "auto" (docs/rllib.md, "Attention on trees").',
        one_of("auto", *TREE_KERNELS),
    ),
    "learner_compile": Option(
        "auto",
        'what torch.compile compiles in the learner: "head" (the LM head\'s arithmetic on logits), "layers" (that and '
        'the decoder layers), "none", or "auto": "layers" on CUDA, if there is a C compiler, otherwise "none".',
        one_of("auto", *COMPILED_PARTS),
    ),
    "baseline": Option(
        "group",
        'what a reward is compared with: "group": the question\'s others (GRPO, ARPO), "tree": these, plus those of '
        'its own root and forks (Tree-GRPO), "batch": all of the batch (REINFORCE++), "same_state": these, and '
        'those that read the same tool response (GiGPO), or "module:function": docs/design.md, "Credit".',
        BASELINE,
    ),
    "returns": Option(
        "total",
        'what judges a token: "total", all rewards of its trajectory (the paper), or "to_go", those paid from its turn '
        "on; both are the same where only the last turn is paid.",
        one_of("total", "to_go"),
    ),
    "normalize_std": Option(
        True,
        "divide the advantages of a question by the standard deviation of its rewards (Dr. GRPO does not).",
        SWITCH,
    ),
    "overlong_buffer_tokens": Option(None, "length of DAPO's soft overlong penalty; None: off.", optional(at_least(1))),
    "max_resample_rounds": Option(
        0,
        "how often groups without signal are replaced by new questions (DAPO); groups that are still without "
        "signal then are left out.",
        at_least(0),
    ),
    "adam_betas": Option((0.9, 0.95), "of AdamW.", Rule("two numbers in [0, 1)", _are_betas)),
    "weight_decay": Option(0.0, "of AdamW.", NOT_NEGATIVE),
    "learner_num_threads": Option(
        None, "CPU threads of a learner; None takes what Ray allots to it.", optional(at_least(1))
    ),
    "learner_timeout_s": Option(
        3600.0,
        "seconds; a remote learner that has not ended an update (or another call) by then hangs, and the run ends as "
        "if it had died; None: no limit.",
        optional(POSITIVE),
    ),
    "skip_groups_without_signal": Option(
        True, "compute nothing for trees without any advantage, whose gradient is zero.", SWITCH
    ),
    "guards": Option(
        {},
        "limits of alarms on the learner's metrics, beside the defaults (`learner/metrics.py`); None: off.",
        a_dict("a dict of limits by metric"),
    ),
    "max_error_share": Option(
        0.5,
        "an iteration or evaluation in which a larger share of the trajectories ends in an error (`stop/error`, "
        "`stop/broken_tool`) ends the run.",
        PROBABILITY,
    ),
    "max_iterations_without_signal": Option(
        25,
        "so many iterations in a row in which no question has rewards that differ end the run; the first few warn. "
        "None: never.",
        optional(at_least(1)),
    ),
    "sharding": Option(
        "none",
        'what each of several learners holds: "none": all of the model, "fsdp2": a part, also of Adam.',
        name_in(SHARDINGS),
    ),
    "optimizer_offload": Option(
        False, "keep Adam's state in the CPU's memory except during optimizer steps; for learners on GPUs.", SWITCH
    ),
}

REPORTING = {
    # Decided in the process that makes the configuration, since a remote env runner sees no terminal.
    "progress_bar": Option(
        progress_mode,
        'of the rollout, within an iteration: "bar", "lines" or "off"; default: a bar on a terminal, otherwise lines.',
        name_in(INTERVALS_S),
    ),
    "record_share": Option(
        0.05,
        "the share of the training questions whose trees are recorded in the trial's folder (docs/watch.md), beside "
        "those of all evaluation questions; None: only of questions that end the run.",
        optional(PROBABILITY),
    ),
}

#: Every option by its name.
OPTIONS = {**LANGUAGE_MODEL, **ADAPTIVE_ROLLOUT, **TRAINING, **REPORTING}
