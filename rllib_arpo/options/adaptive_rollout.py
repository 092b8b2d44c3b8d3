"""Declares the options of `ARPOConfig.adaptive_rollout`."""

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
from rllib_arpo.options.option import Need, Reader, option
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

#: The core sets the defaults of the fork rule.
FORK_RULE = BranchingParams()


def _monitors(config: AlgorithmConfig) -> bool:
    return config.pre_monitoring_sensitivity is not None


def _follows_rises(config: AlgorithmConfig) -> bool:
    """Whether tau follows the rises of earlier questions."""
    return config.branch_threshold == AUTO and config.branching in rules_with("branch_threshold")


def _follows_earlier_questions(config: AlgorithmConfig) -> bool:
    automatic = config.entropy_baseline == "running" or _follows_rises(config)
    return automatic or looks_back(config.branching) or _monitors(config)


def _chooses_without_entropy(branching: str) -> bool:
    return BRANCHING_RULES[branching].is_choosy and not decides_by_p(branching)


def _given_for_its_rule(name: str, value: str, branching: str) -> Need:
    """The need of an option without a default, which the rules that read it cannot do without."""
    return Need(
        f"branching={{branching!r}} needs {value}, which has no default",
        lambda c: getattr(c, name) is not None or c.branching not in rules_with(name),
        {"branching": branching},
    )


ADAPTIVE_ROLLOUT = {
    "num_rollouts": option(
        16,
        "M: trajectories per question.",
        at_least(1),
        Reader.SAMPLING,
        Need(
            "baseline={baseline!r} compares a question's trajectories; take more, or baseline='batch'",
            lambda c: c.in_evaluation or c.baseline not in CREDITS or c.num_rollouts > 1,
            {"num_rollouts": 1, "branching": "never"},
        ),
    ),
    "num_initial_rollouts": option(
        2,
        "N: how many start at the prompt; the other M - N are forks or top-ups.",
        at_least(1),
        Reader.SAMPLING,
        Need(
            "must not exceed num_rollouts={num_rollouts}",
            lambda c: c.branching == "never" or c.num_initial_rollouts <= c.num_rollouts,
            {"num_rollouts": 1, "baseline": "batch"},
        ),
        Need(
            "leaves none of num_rollouts={num_rollouts} for forks; lower it, or set branching='never'",
            lambda c: c.branching == "never" or c.num_initial_rollouts != c.num_rollouts or _monitors(c),
            {"num_rollouts": 2},
        ),
    ),
    "branching": option(
        FORK_RULE.branching,
        'when a tool response forks. "threshold": if P > tau; "probability": with probability P; "random" (a control): '
        'with `random_fork_probability`; "permuted" (a control): if a random earlier response at its depth has P > '
        'tau; "depth" (a control): at `branch_depth`; "always", so `budget_allocation` chooses; "never" (GRPO).',
        name_in(BRANCHING_RULES),
        Reader.SAMPLING,
        Need(
            "with max_tool_calls=0 there is no tool response to fork at; set branching='never'",
            lambda c: c.branching == "never" or c.max_tool_calls > 0,
            {"max_tool_calls": 0},
        ),
    ),
    "branch_width": option(
        WIDE,
        'Z: children per fork; "wide": (M - N) / N, rounded up, so the first forks share the whole budget.',
        or_name(at_least(1), WIDE),
        Reader.FORKS,
        Need(
            "does not work with pre_monitoring_sensitivity, which gives each question its own N; set a number",
            lambda c: c.branch_width != WIDE or not _monitors(c),
            {"pre_monitoring_sensitivity": 1.0},
        ),
        # The rule "probability" draws for every child.
        Need(
            "must be less than num_rollouts={num_rollouts}",
            lambda c: c.branch_width == WIDE or c.branch_width < c.num_rollouts,
            {"branch_width": 16},
        ),
    ),
    "entropy_window": option(20, "k: how many tokens after a tool response are compared.", at_least(1)),
    "entropy_estimator": option(
        "exact",
        '"exact": over the whole vocabulary; "top_k": over the ten likeliest tokens (the authors\' code).',
        name_in(ENTROPY_ESTIMATORS),
    ),
    "entropy_normalization": option(
        "sum_log_vocab",
        'units of the window\'s entropy. "sum_log_vocab": sum / ln V (the authors\' code); "mean_log_vocab": '
        'mean / ln V; "vocab": sum / V (the paper).',
        name_in(ENTROPY_NORMALIZATIONS),
    ),
    "entropy_baseline": option(
        "initial",
        'what the entropy after a tool response is compared with. "initial" (the paper): the root\'s first tokens; '
        '"running": the mean after the same tool in earlier questions.',
        one_of("initial", "running"),
        Reader.ROLLOUT,
        Need(
            "branching={branching!r} does not use the entropy; leave entropy_baseline='initial'",
            lambda c: (
                c.branching == "never"
                or c.entropy_baseline != "running"
                or reads_p(c.branching)
                or c.budget_allocation in RANKED
            ),
            {"entropy_baseline": "running", "branching": "always"},
        ),
    ),
    "entropy_baseline_questions": option(
        None,
        'how many earlier questions "running", "permuted", "auto" and pre-monitoring use; None: `questions_per_batch`.',
        optional(at_least(1)),
        Reader.TRAINING,
        Need(
            "nothing uses earlier questions; set branching='threshold' with branch_threshold='auto', "
            "entropy_baseline='running', branching='permuted' or a pre_monitoring_sensitivity",
            lambda c: c.branching == "never" or c.entropy_baseline_questions is None or _follows_earlier_questions(c),
            {"entropy_baseline_questions": 9, "branch_threshold": 0.5},
        ),
    ),
    "record_entropies": option(
        "windows",
        'which entropies are kept. "windows": each turn\'s first k tokens, which decide forks; "all": all generated '
        "tokens.",
        name_in(RECORD_ENTROPIES),
    ),
    "branch_base_probability": option(
        FORK_RULE.branch_base_probability,
        "alpha in P = alpha + beta * dH.",
        PROBABILITY,
        Reader.FORKS,
    ),
    "branch_entropy_weight": option(FORK_RULE.branch_entropy_weight, "beta in P.", POSITIVE, Reader.FORKS),
    "branch_threshold": option(
        AUTO,
        'tau: a response forks if P exceeds it. "auto": the tau that `branch_share` of the earlier responses exceed; '
        "the paper has 0.5.",
        or_name(FINITE, AUTO),
        Reader.FORKS,
        Need(
            "entropy_baseline='running' follows the run already; set a number",
            lambda c: not _follows_rises(c) or c.entropy_baseline != "running",
            {"entropy_baseline": "running"},
        ),
    ),
    "branch_share": option(
        None,
        f'for branch_threshold="auto": share of tool responses that fork while forks are left; None: {AUTO_SHARE}.',
        optional(number("a number between 0 and 1", lambda value: 0 < value < 1)),
        Reader.TRAINING,
        Need(
            "only branching='threshold' or 'permuted' with branch_threshold='auto' reads it",
            lambda c: c.branching == "never" or c.branch_share is None or _follows_rises(c),
            {"branch_share": 0.3, "branch_threshold": 0.5},
        ),
    ),
    "random_fork_probability": option(
        FORK_RULE.random_fork_probability,
        'for branching="random": probability of a fork.',
        optional(PROBABILITY),
        Reader.FORKS,
        _given_for_its_rule("random_fork_probability", "a probability", "random"),
    ),
    "branch_depth": option(
        FORK_RULE.branch_depth,
        'for branching="depth": n; each path forks at its n-th tool response.',
        optional(at_least(1)),
        Reader.FORKS,
        _given_for_its_rule("branch_depth", "a number", "depth"),
        Need(
            "no path has so many tool responses; max_tool_calls={max_tool_calls}",
            lambda c: c.branch_depth is None or c.branch_depth <= c.max_tool_calls,
            {"branching": "depth", "branch_depth": 4},
        ),
    ),
    "consecutive_fork_penalty": option(
        FORK_RULE.consecutive_fork_penalty,
        "c in AEPO's factor 1 - min(c l, 1) on P, where the l nodes directly above forked.",
        PROBABILITY,
        Reader.FORKS,
        Need(
            "budget_allocation={budget_allocation!r} may decide a node before the nodes above it; set 0",
            lambda c: not c.consecutive_fork_penalty or c.budget_allocation not in OVER_TREE,
            {"consecutive_fork_penalty": 0.1, "budget_allocation": "ranked_over_tree"},
        ),
    ),
    "pre_monitoring_sensitivity": option(
        None,
        "beta in AEPO's N = M sigma(beta (H_root - H_tool)) for each question; None: always `num_initial_rollouts`.",
        optional(POSITIVE),
        Reader.FORKS,
    ),
    "budget_allocation": option(
        "first_come",
        'which responses fork if the budget is short. "first_come": the first; "ranked": the largest rises of a turn; '
        '"ranked_over_tree": the largest rises of the question, once all its trajectories have ended, which takes '
        'about twice as long; "random_over_tree": random ones, at the same moment (Tree-GRPO).',
        name_in(BUDGET_ALLOCATIONS),
        Reader.FORKS,
        Need(
            "ranks by entropy, which branching={branching!r} must ignore; use 'first_come'",
            lambda c: c.budget_allocation not in RANKED or not _chooses_without_entropy(c.branching),
            {"budget_allocation": "ranked", "branching": "random", "random_fork_probability": 0.5},
        ),
    ),
    "max_tool_calls": option(
        3,
        "tool calls per path; the next one ends it. Actions in a world and answers to an agent also count.",
        at_least(0),
    ),
    "max_response_tokens": option(
        4096,
        "maximum tokens of a path after the prompt, from the model and from tools.",
        at_least(1),
        Reader.ROLLOUT,
        Need(
            "must not exceed max_context_tokens={max_context_tokens}",
            lambda c: c.max_response_tokens <= c.max_context_tokens,
            {"max_context_tokens": 2048},
        ),
    ),
    "max_turn_tokens": option(
        None, "maximum generated tokens of one turn; None: no separate limit.", optional(at_least(1))
    ),
    "temperature": option(
        1.0, "sampling temperature; all log-probs are at this temperature.", POSITIVE, Reader.SAMPLING
    ),
    "question_deadline_s": option(
        600.0,
        "seconds after which a question's unfinished trajectories are cut off; they keep their complete turns.",
        POSITIVE,
    ),
    "on_bad_row": option(
        "raise",
        'if a row cannot be asked (no answer, prompt too long), "raise" ends the run and names the row; "skip" leaves '
        "it out and counts it (`questions_given_up`).",
        one_of("raise", "skip"),
    ),
    "max_weight_lag": option(
        0,
        "how many updates the sampling weights may lag behind the trained ones. 0: strictly on-policy; L >= 1: the "
        "next L batches are sampled during the update, and `importance_cap` corrects for the older weights.",
        at_least(0),
        Reader.TRAINING,
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
    "deterministic": option(
        False,
        "makes trees depend only on weights, questions and `debugging(seed=)`, not on timing; forks are decided turn "
        "by turn.",
        SWITCH,
        Reader.ROLLOUT,
        Need(
            "max_weight_lag={max_weight_lag} changes weights within trajectories, so trees depend on timing",
            lambda c: c.in_evaluation or not (c.deterministic and c.max_weight_lag),
            {"deterministic": True, "max_weight_lag": 1, "num_env_runners": 1},
        ),
    ),
}
