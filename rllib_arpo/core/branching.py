"""How many children a tool response gets (ARPO, arXiv 2507.19849, section 3.1, eq. 4 and 5)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, slots=True)
class BranchingParams:
    """The settings of the fork decision; the names are those of the configuration.

    Attributes:
        branching: a key of `BRANCHING_RULES`.
        branch_width: Z, children per fork, >= 1.
        branch_base_probability: alpha.
        branch_entropy_weight: beta.
        branch_threshold: tau, read by "threshold".
        random_fork_probability: read by "random", which has no default for it.
    """

    branching: str = "threshold"
    branch_width: int = 1
    branch_base_probability: float = 0.5
    branch_entropy_weight: float = 0.2
    branch_threshold: float = 0.5
    random_fork_probability: float | None = None


def branch_probability(delta: float, params: BranchingParams) -> float:
    """`P = alpha + beta * dH`, not clipped (paper eq. 4)."""
    return params.branch_base_probability + params.branch_entropy_weight * delta


def _threshold(delta: float, params: BranchingParams, rng: np.random.Generator) -> int:
    """The paper: all Z children if `P > tau`, else none (eq. 5).

    Written as `beta * dH > tau - alpha`: with alpha = tau this is exactly dH > 0 for every positive beta, where
    `alpha + beta * dH` would round a small rise away.
    """
    rise_needed = params.branch_threshold - params.branch_base_probability
    return params.branch_width if params.branch_entropy_weight * delta > rise_needed else 0


def _probability(delta: float, params: BranchingParams, rng: np.random.Generator) -> int:
    """The authors' code: each of the Z children exists with probability clip(P, 0, 1), drawn per child."""
    return int((rng.random(params.branch_width) < branch_probability(delta, params)).sum())


def _random(delta: float, params: BranchingParams, rng: np.random.Generator) -> int:
    """The control: all Z children with a fixed probability, drawn once per node; the entropy is ignored."""
    if params.random_fork_probability is None:
        raise ValueError('branching="random" needs random_fork_probability')
    return params.branch_width if rng.random() < params.random_fork_probability else 0


def _never(delta: float, params: BranchingParams, rng: np.random.Generator) -> int:
    """Trajectory-level sampling: GRPO and its relatives."""
    return 0


#: name -> `(dH, params, rng) -> children wanted, 0 .. Z`, before the budget is applied.
BRANCHING_RULES: dict[str, Callable[[float, BranchingParams, np.random.Generator], int]] = {
    "threshold": _threshold,
    "probability": _probability,
    "random": _random,
    "never": _never,
}


def num_forks(delta: float, budget_left: int, params: BranchingParams, rng: np.random.Generator) -> int:
    """The number of children that one node creates: what the rule wants, up to the budget.

    Called once per node. A rule is asked, and draws its random numbers, only while budget is left.

    Args:
        delta: dH at this node.
        budget_left: forked trajectories that the question may still create.
        params: the rule and its settings.
        rng: used by the rules that draw.

    Returns:
        0 .. min(branch_width, budget_left).

    Raises:
        ValueError: dH is not finite (the engine's entropies are broken), or "random" without its probability.
        KeyError: the rule is unknown.
    """
    if not math.isfinite(delta):
        raise ValueError(f"the entropy rise must be finite, got {delta}")
    wanted = BRANCHING_RULES[params.branching]
    if budget_left <= 0:
        return 0
    return min(wanted(delta, params, rng), budget_left)
