"""Decides how many children a tool response gets (ARPO, arXiv 2507.19849, section 3.1, eq. 4 and 5)."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

#: `branch_width`: the first responses that fork share the whole budget for forks.
WIDE = "wide"
#: The paper's `branch_threshold`, and the first tau of `AUTO`.
PAPER_THRESHOLD = 0.5
#: `branch_threshold`: tau follows the rises of the last questions (`threshold_of`).
AUTO = "auto"
#: The share of tool responses that `AUTO` aims to fork if the configuration names none.
AUTO_SHARE = 0.25


@dataclass(frozen=True, slots=True)
class BranchingParams:
    """The settings of the fork decision; the names are those of the configuration.

    Attributes:
        branching: a key of `BRANCHING_RULES`.
        branch_width: Z, children per fork, >= 1; `children_per_fork` resolves a name.
        branch_base_probability: alpha.
        branch_entropy_weight: beta.
        branch_threshold: tau; "threshold" and "permuted" read it, and `threshold_of` resolves a name. The paper's is
            0.5: with alpha = 0.5 any rise of the entropy forks.
        random_fork_probability: "random" reads it, and has no default for it.
        branch_depth: n, >= 1; "depth" reads it, and has no default for it.
        consecutive_fork_penalty: c of `consecutive_penalty`, in [0, 1]; 0: none.
    """

    branching: str = "threshold"
    branch_width: int = 1
    branch_base_probability: float = 0.5
    branch_entropy_weight: float = 0.2
    branch_threshold: float = PAPER_THRESHOLD
    random_fork_probability: float | None = None
    branch_depth: int | None = None
    consecutive_fork_penalty: float = 0.0


@dataclass(frozen=True, slots=True)
class NodeEvidence:
    """The facts about a node by which a rule decides.

    Attributes:
        delta: dH at the node, finite.
        depth: turns on its path above it: 1 at the first tool response.
        consecutive_forks: l, how many nodes directly above it on its path were forked, without a gap.
        earlier: dH at nodes of the same depth in earlier questions; "permuted" draws one of them.
    """

    delta: float
    depth: int = 1
    consecutive_forks: int = 0
    earlier: Sequence[float] = ()


def consecutive_penalty(consecutive_forks: int, params: BranchingParams) -> float:
    """`P^(l) = min(c l, 1)`: AEPO's penalty for consecutive forks on a path (arXiv 2510.14545), linear in l."""
    return min(params.consecutive_fork_penalty * consecutive_forks, 1.0)


def branch_probability(node: NodeEvidence, params: BranchingParams) -> float:
    """`P = (alpha + beta * dH) (1 - P^(l))`, not clipped: paper eq. 4, and AEPO's where c > 0."""
    probability = params.branch_base_probability + params.branch_entropy_weight * node.delta
    return probability * (1.0 - consecutive_penalty(node.consecutive_forks, params))


def _threshold(node: NodeEvidence, params: BranchingParams, rng: np.random.Generator) -> int:
    """The paper: all Z children if `P > tau`, otherwise none (eq. 5).

    The code tests `beta * dH > tau / (1 - P^(l)) - alpha`: with alpha = tau and no penalty this is exactly dH > 0 for
    every positive beta, whereas `alpha + beta * dH` would round a small rise away.
    """
    kept = 1.0 - consecutive_penalty(node.consecutive_forks, params)
    if kept == 0.0:
        return params.branch_width if params.branch_threshold < 0.0 else 0
    rise_needed = params.branch_threshold / kept - params.branch_base_probability
    return params.branch_width if params.branch_entropy_weight * node.delta > rise_needed else 0


def _permuted(node: NodeEvidence, params: BranchingParams, rng: np.random.Generator) -> int:
    """The control at equal depth: the threshold is applied to the dH of a random earlier node of the same depth.

    Until there are such nodes, it is applied to the node's own dH.
    """
    return _threshold(replace(node, delta=rng.choice(node.earlier)) if len(node.earlier) else node, params, rng)


def _probability(node: NodeEvidence, params: BranchingParams, rng: np.random.Generator) -> int:
    """The authors' code: each of the Z children exists with probability clip(P, 0, 1), drawn per child."""
    return int((rng.random(params.branch_width) < branch_probability(node, params)).sum())


def _random(node: NodeEvidence, params: BranchingParams, rng: np.random.Generator) -> int:
    """The control: all Z children with a fixed probability, drawn once per node; the entropy is ignored."""
    assert params.random_fork_probability is not None  # Validation of the options ensures it.
    return params.branch_width if rng.random() < params.random_fork_probability else 0


def _always(node: NodeEvidence, params: BranchingParams, rng: np.random.Generator) -> int:
    """All Z children at every node; `budget_allocation` chooses the nodes (AT2PO's top k, arXiv 2601.04767)."""
    return params.branch_width


def _never(node: NodeEvidence, params: BranchingParams, rng: np.random.Generator) -> int:
    """Trajectory-level sampling: GRPO and its relatives."""
    return 0


def _depth(node: NodeEvidence, params: BranchingParams, rng: np.random.Generator) -> int:
    """The baseline of the clever rules: all Z children at the n-th response of a path; the entropy is ignored."""
    return params.branch_width if node.depth == params.branch_depth else 0


def _threshold_chance(node: NodeEvidence, params: BranchingParams) -> float:
    # The rule draws no random number.
    return float(_threshold(node, params, np.random.default_rng(0)) > 0)


def _probability_chance(node: NodeEvidence, params: BranchingParams) -> float:
    return min(max(branch_probability(node, params), 0.0), 1.0)


@dataclass(frozen=True, slots=True)
class BranchingRule:
    """A rule and its properties.

    Attributes:
        children: `(node, params, rng) -> children wanted, 0 .. Z`, before the budget is applied.
        words: where it forks; follows "forks" in a sentence, with the names of settings in braces.
        chance: `(node, params) -> the probability of each of the Z children`, by P; None: the rule ignores P.
        options: the names of the options that the rule reads.
        looks_back: whether it reads `NodeEvidence.earlier`, and decides by P of a node of an earlier question.
        is_choosy: whether it forks some nodes and not others. If it also ignores P, the order of forks must ignore P.
    """

    children: Callable[[NodeEvidence, BranchingParams, np.random.Generator], int]
    words: str
    chance: Callable[[NodeEvidence, BranchingParams], float] | None = None
    options: tuple[str, ...] = ()
    looks_back: bool = False
    is_choosy: bool = True


#: Options of the rules that look at P.
_OF_P = ("branch_base_probability", "branch_entropy_weight", "consecutive_fork_penalty")
BRANCHING_RULES: dict[str, BranchingRule] = {
    "threshold": BranchingRule(
        _threshold, "where P > {branch_threshold:g}", _threshold_chance, ("branch_threshold", *_OF_P)
    ),
    "probability": BranchingRule(_probability, "with probability P", _probability_chance, _OF_P),
    "random": BranchingRule(
        _random, "with probability {random_fork_probability:g}", options=("random_fork_probability",)
    ),
    "permuted": BranchingRule(
        _permuted,
        "where P of an earlier response > {branch_threshold:g}",
        options=("branch_threshold", *_OF_P),
        looks_back=True,
    ),
    "depth": BranchingRule(_depth, "at tool response {branch_depth} of a path", options=("branch_depth",)),
    "always": BranchingRule(_always, "at every node", is_choosy=False),
    "never": BranchingRule(_never, "nowhere", is_choosy=False),
}


def rules_with(option: str) -> list[str]:
    """The registered rules that read an option."""
    return [name for name, rule in BRANCHING_RULES.items() if option in rule.options]


def has_fixed_threshold(name: str, branch_threshold: float | str) -> bool:
    """Whether a registered rule reads tau, and tau does not follow the run."""
    return name in rules_with("branch_threshold") and branch_threshold != AUTO


def decides_by_p(name: str) -> bool:
    """Whether a registered rule decides by P, the probability computed from the entropy."""
    rule = BRANCHING_RULES.get(name)
    return rule is not None and rule.chance is not None


def looks_back(name: str) -> bool:
    """Whether a registered rule decides by nodes of earlier questions."""
    rule = BRANCHING_RULES.get(name)
    return rule is not None and rule.looks_back


def reads_p(name: str) -> bool:
    """Whether a registered rule decides by P of the node or of an earlier one."""
    return decides_by_p(name) or looks_back(name)


def rule_in_words(settings: Mapping[str, Any]) -> str:
    """Says where a run forks; `settings` is the run's configuration, whose rule may be the user's own."""
    rule = BRANCHING_RULES.get(settings["branching"])
    if rule is None:
        return f"by the rule {settings['branching']!r}"
    if "branch_threshold" in rule.options and settings["branch_threshold"] == AUTO:
        share = settings["branch_share"] or AUTO_SHARE
        of = " of an earlier response" if rule.looks_back else ""
        return f"where dH{of} is in the highest {share:.0%} of the last questions'"
    return rule.words.format_map(settings)


def num_forks(node: NodeEvidence, budget_left: int, params: BranchingParams, rng: np.random.Generator) -> int:
    """The number of children that a node gets: as many as the rule wants, up to the budget.

    Call it once per node. The rule decides, and draws random numbers, only while budget is left.

    Args:
        node: the facts about the node.
        budget_left: forked trajectories that the question may still create.
        params: the rule and its settings.
        rng: for the rules that draw.

    Returns:
        0 .. min(branch_width, budget_left).

    Raises:
        KeyError: the rule is unknown.
    """
    wanted = BRANCHING_RULES[params.branching].children
    if budget_left <= 0:
        return 0
    return min(wanted(node, params, rng), budget_left)


def children_per_fork(branch_width: int | str, num_rollouts: int, num_initial_rollouts: int) -> int:
    """Z of a question with M rollouts, N of them from the prompt; a number is returned unchanged.

    `WIDE` is `max(ceil((M - N) / N), 1)`: at most N responses use up the budget for forks, in equal shares except for
    the last.
    """
    if isinstance(branch_width, str):
        return max(math.ceil((num_rollouts - num_initial_rollouts) / num_initial_rollouts), 1)
    return branch_width


def threshold_of(branch_threshold: float | str, rise: float | None, alpha: float, beta: float) -> float:
    """tau of a question; a number is returned unchanged.

    Args:
        rise: the dH that the wanted share of the last questions' responses exceeds (`RolloutReference.rise`); None
            before the first questions have ended: `AUTO` then means the paper's 0.5.
        alpha, beta: the coefficients of P.
    """
    if not isinstance(branch_threshold, str):
        return branch_threshold
    if rise is None:
        return PAPER_THRESHOLD
    threshold = alpha + beta * rise
    # `_threshold` subtracts alpha again: if that rounds down, a dH equal to the rise would exceed it.
    return threshold if threshold - alpha >= beta * rise else math.nextafter(threshold, math.inf)


def monitored_rollouts(excess: float, num_rollouts: int, sensitivity: float) -> int:
    """AEPO's entropy pre-monitoring: `m = k sigma(beta (H_root - mean H_tool))` (arXiv 2510.14545).

    If a question's first tokens are more uncertain than the tokens after tool responses, the question gets more
    trajectories from the prompt and fewer forks.

    Args:
        excess: H_root - mean H_tool, in units of dH (`core.entropy.running_delta`): the entropy of the first tokens of
            the question's first trajectory minus the mean level after tool responses.
        num_rollouts: k of the formula (M here).
        sensitivity: beta of the formula, > 0.

    Returns:
        m, rounded to the nearest integer (halves up), 1 .. M.
    """
    share = 1.0 / (1.0 + math.exp(-max(min(sensitivity * excess, 700.0), -700.0)))
    return min(max(math.floor(num_rollouts * share + 0.5), 1), num_rollouts)
