"""The options of `ARPOConfig.adaptive_rollout`."""

from ray.rllib.algorithms.algorithm_config import AlgorithmConfig

from rllib_arpo.core.branching import (
    AUTO,
    AUTO_SHARE,
    BRANCHING_RULES,
    WIDE,
    BranchingParams,
    decides_by_p,
    looks_back,
    reads_p,
    rules_with,
)
from rllib_arpo.core.credit import CREDITS
from rllib_arpo.core.entropy import ENTROPY_ESTIMATORS, ENTROPY_NORMALIZATIONS
from rllib_arpo.engine.engine import RECORD_ENTROPIES
from rllib_arpo.options.option import Need, Option, Reader
from rllib_arpo.options.rules import (
    FINITE,
    POSITIVE,
    PROBABILITY,
    SWITCH,
    at_least,
    name_in,
    number,
    one_of,
    optional,
    or_name,
)
from rllib_arpo.rollout.fork_schedule import BUDGET_ALLOCATIONS, OVER_TREE, RANKED

#: The defaults of the fork rule, which the core states.
FORK_RULE = BranchingParams()


def _monitors(config: AlgorithmConfig) -> bool:
    return config.pre_monitoring_sensitivity is not None


def _follows_earlier_questions(config: AlgorithmConfig) -> bool:
    automatic = config.entropy_baseline == "running" or config.branch_threshold == AUTO
    return automatic or looks_back(config.branching) or _monitors(config)


def _chooses_without_entropy(branching: str) -> bool:
    return BRANCHING_RULES[branching].is_choosy and not decides_by_p(branching)


ADAPTIVE_ROLLOUT = {
    "num_rollouts": Option(
        16,
        "M, trajectories per question.",
        at_least(1),
        Reader.SAMPLING,
        needs=(
            Need(
                "baseline={baseline!r} compares a question's trajectories; use 'batch'",
                lambda c: c.in_evaluation or c.baseline not in CREDITS or c.num_rollouts > 1,
                {"num_rollouts": 1, "branching": "never"},
            ),
        ),
    ),
    "num_initial_rollouts": Option(
        8,
        "N, how many of them start at the prompt; the other M - N are forks or top-ups.",
        at_least(1),
        Reader.SAMPLING,
        needs=(
            Need(
                "must not exceed num_rollouts={num_rollouts}",
                lambda c: c.branching == "never" or c.num_initial_rollouts <= c.num_rollouts,
                {"num_rollouts": 4},
            ),
            Need(
                "leaves none of num_rollouts={num_rollouts} to fork; branching='never' says so",
                lambda c: c.branching == "never" or c.num_initial_rollouts != c.num_rollouts or _monitors(c),
                {"num_rollouts": 8},
            ),
        ),
    ),
    "branching": Option(
        FORK_RULE.branching,
        'which tool responses fork. "threshold": those with P > tau. "probability": each with probability P. '
        '"random" (a control): each with `random_fork_probability`. "permuted" (a control at equal depth): where '
        'P of a random earlier response at the same depth exceeds tau. "always": all, so `budget_allocation` '
        'chooses. "never": none (GRPO).',
        name_in(BRANCHING_RULES),
        Reader.SAMPLING,
        needs=(
            Need(
                "max_tool_calls=0 leaves no response to fork at; branching='never' says so",
                lambda c: c.branching == "never" or c.max_tool_calls > 0,
                {"max_tool_calls": 0},
            ),
        ),
    ),
    "branch_width": Option(
        FORK_RULE.branch_width,
        'Z, how many children a fork has; "wide": (M - N) / N, rounded up, so the first forks share the whole budget.',
        or_name(at_least(1), WIDE),
        Reader.FORKS,
        needs=(
            Need(
                "not with pre_monitoring_sensitivity, whose N differs between questions",
                lambda c: c.branch_width != WIDE or not _monitors(c),
                {"branch_width": "wide", "pre_monitoring_sensitivity": 1.0},
            ),
            # "probability" would draw every child.
            Need(
                "must be less than num_rollouts={num_rollouts}",
                lambda c: c.branch_width == WIDE or c.branch_width < c.num_rollouts,
                {"branch_width": 16},
            ),
        ),
    ),
    "entropy_window": Option(20, "k, how many tokens after a tool response are compared.", at_least(1)),
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
        'what the entropy after a tool response is compared with. "initial" (the paper): that of the root\'s first'
        ' tokens; "running": the mean after the same tool\'s responses in earlier questions.',
        one_of("initial", "running"),
        needs=(
            Need(
                "branching={branching!r} does not look at the entropy",
                lambda c: (
                    c.branching == "never"
                    or c.entropy_baseline != "running"
                    or reads_p(c.branching)
                    or c.budget_allocation in RANKED
                ),
                {"entropy_baseline": "running", "branching": "always"},
            ),
        ),
    ),
    "entropy_baseline_questions": Option(
        None,
        'how many of the last questions "running", "permuted", branch_threshold="auto" and pre-monitoring look '
        "at; None: `questions_per_batch`.",
        optional(at_least(1)),
        Reader.TRAINING,
        needs=(
            Need(
                "needs one of entropy_baseline='running', branching='permuted', branch_threshold='auto', "
                "a pre_monitoring_sensitivity",
                lambda c: (
                    c.branching == "never" or c.entropy_baseline_questions is None or _follows_earlier_questions(c)
                ),
                {"entropy_baseline_questions": 9},
            ),
        ),
    ),
    "record_entropies": Option(
        "windows",
        'which entropies are kept: "windows": those of a turn\'s first k tokens; "all": those of all generated '
        "tokens. Fork decisions look at the first k in both cases.",
        name_in(RECORD_ENTROPIES),
    ),
    "branch_base_probability": Option(
        FORK_RULE.branch_base_probability,
        "alpha of P = alpha + beta * dH.",
        PROBABILITY,
        Reader.FORKS,
    ),
    "branch_entropy_weight": Option(FORK_RULE.branch_entropy_weight, "beta of P.", POSITIVE, Reader.FORKS),
    "branch_threshold": Option(
        FORK_RULE.branch_threshold,
        'tau; a response forks if P exceeds it. "auto": tau follows dH of the last `entropy_baseline_questions` '
        "questions, so that `branch_share` of the tool responses exceed it.",
        or_name(FINITE, AUTO),
        Reader.FORKS,
        needs=(
            Need(
                "entropy_baseline='running' moves already; set a number",
                lambda c: c.branch_threshold != AUTO or c.entropy_baseline != "running",
                {"branch_threshold": "auto", "entropy_baseline": "running"},
            ),
        ),
    ),
    "branch_share": Option(
        None,
        f'of branch_threshold="auto": the share of tool responses that fork while forks are left; None: {AUTO_SHARE}.',
        optional(number("a number between 0 and 1", lambda value: 0 < value < 1)),
        Reader.TRAINING,
        needs=(
            Need(
                "belongs to branch_threshold='auto'",
                lambda c: c.branching == "never" or c.branch_share is None or c.branch_threshold == AUTO,
                {"branch_share": 0.3},
            ),
        ),
    ),
    "random_fork_probability": Option(
        FORK_RULE.random_fork_probability,
        'with branching="random": the probability of a fork.',
        optional(PROBABILITY),
        Reader.FORKS,
        needs=(
            Need(
                "branching={branching!r} needs a probability; it has no default",
                lambda c: (
                    c.random_fork_probability is not None or c.branching not in rules_with("random_fork_probability")
                ),
                {"branching": "random"},
            ),
        ),
    ),
    "consecutive_fork_penalty": Option(
        FORK_RULE.consecutive_fork_penalty,
        "c of AEPO's factor 1 - min(c l, 1) on P, where l nodes directly above were forked.",
        PROBABILITY,
        Reader.FORKS,
        needs=(
            Need(
                "with budget_allocation={budget_allocation!r} a node may be decided before those above it",
                lambda c: not c.consecutive_fork_penalty or c.budget_allocation not in OVER_TREE,
                {"consecutive_fork_penalty": 0.1, "budget_allocation": "ranked_over_tree"},
            ),
        ),
    ),
    "pre_monitoring_sensitivity": Option(
        None,
        "beta of AEPO's choice of N for each question, N = M sigma(beta (H_root - H_tool)), from batch 2 + "
        "`max_weight_lag` on; None: every question has `num_initial_rollouts`.",
        optional(POSITIVE),
        Reader.FORKS,
    ),
    "budget_allocation": Option(
        "first_come",
        'which nodes get the forks if the budget is short. "first_come": the first ones. "ranked": the largest '
        "rises among a question's nodes of the same turn, once all its live trajectories have passed the turn. "
        '"ranked_over_tree": the largest rises of the question, once all its trajectories have ended, so a '
        'question lasts about twice as long. "random_over_tree": random nodes, at the same time (Tree-GRPO).',
        name_in(BUDGET_ALLOCATIONS),
        Reader.FORKS,
        needs=(
            Need(
                "branching={branching!r} must ignore the entropy",
                lambda c: c.budget_allocation not in RANKED or not _chooses_without_entropy(c.branching),
                {"budget_allocation": "ranked", "branching": "random", "random_fork_probability": 0.5},
            ),
        ),
    ),
    "max_tool_calls": Option(
        3,
        "how many tool calls a path may make; the next one ends it. Actions in a world and answers that an agent "
        "gets count too.",
        at_least(0),
    ),
    "max_response_tokens": Option(
        4096,
        "the most tokens that a path may have after the prompt, generated or from tools.",
        at_least(1),
        needs=(
            Need(
                "must not exceed max_context_tokens={max_context_tokens}",
                lambda c: c.max_response_tokens <= c.max_context_tokens,
                {"max_context_tokens": 2048},
            ),
        ),
    ),
    "max_turn_tokens": Option(
        None, "the most tokens that one turn may generate; None: no limit of its own.", optional(at_least(1))
    ),
    "temperature": Option(
        1.0, "the temperature of sampling; all log-probs are at this temperature.", POSITIVE, Reader.SAMPLING
    ),
    "question_deadline_s": Option(
        600.0,
        "seconds after which a question's unfinished trajectories are cut off. They keep their whole turns, but "
        "not the turn that is being generated.",
        POSITIVE,
    ),
    "deadline_reward": Option(
        None,
        "the reward of a trajectory that the deadline cuts off. None leaves it out of the group mean and of the "
        "loss. With a number it counts, and its last turn earns this reward as well. It is still left out if it "
        "has no whole turn of its own, if a fork that counts shares its last turn, or if it is a fork whose first "
        "turn was not answered.",
        optional(FINITE),
    ),
    "on_bad_row": Option(
        "raise",
        'what happens if a row of the data cannot be asked (no answer, a prompt that is too long): "raise" ends '
        'the run and names file and row; "skip" leaves the question out and counts it (`questions_given_up`). The'
        " first row is checked at the start.",
        one_of("raise", "skip"),
    ),
    "max_weight_lag": Option(
        0,
        "how many updates the weights that sample may be behind the trained ones. 0: strictly on-policy. With L "
        ">= 1 the next L batches are sampled during the update, and engines take new weights in the middle of a "
        "trajectory. Every token keeps the version that sampled it, and `importance_cap` corrects for it. ARPO "
        "asks a question again if its weights exceed the bound.",
        at_least(0),
        Reader.TRAINING,
        needs=(
            Need(
                "needs num_env_runners >= 1",
                lambda c: not c.max_weight_lag or c.num_env_runners > 0,
                {"max_weight_lag": 1},
            ),
            Need(
                "needs an importance_cap, which corrects for the older weights",
                lambda c: not c.max_weight_lag or c.importance_cap is not None,
                {"max_weight_lag": 1, "num_env_runners": 1, "importance_cap": None},
            ),
        ),
    ),
    "deterministic": Option(
        False,
        "the same weights and questions give the same trees, whatever the timing: forks are decided turn by turn in "
        'the order of agent ids (or "ranked"), and every request has its own seed, made from the run\'s '
        "`debugging(seed=)`, question, agent id and turn. A deadline still depends on the clock.",
        SWITCH,
        needs=(
            Need(
                "with max_weight_lag={max_weight_lag} new weights arrive in the middle of trajectories, so that trees "
                "depend on timing",
                lambda c: c.in_evaluation or not (c.deterministic and c.max_weight_lag),
                {"deterministic": True, "max_weight_lag": 1, "num_env_runners": 1},
            ),
        ),
    ),
}
