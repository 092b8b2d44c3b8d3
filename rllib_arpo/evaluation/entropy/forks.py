"""The forks that each rule would have made at the nodes, given enough budget."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from rllib_arpo.core.branching import BRANCHING_RULES, BranchingParams, NodeEvidence, branch_probability
from rllib_arpo.core.entropy import ENTROPY_NORMALIZATIONS
from rllib_arpo.evaluation.entropy.nodes import INITIAL, RUNNING, Node, deltas


@dataclass(frozen=True, slots=True)
class ForkRule:
    """A rule of `core.branching` with the baseline and the units of dH."""

    branching: str
    baseline: str
    normalization: str

    @property
    def name(self) -> str:
        return f"{self.branching}, {self.baseline}, {self.normalization}"


def fork_rules(normalization: str) -> list[ForkRule]:
    """The threshold from both baselines, in units of `normalization`; the probability in all units."""
    thresholds = [ForkRule("threshold", baseline, normalization) for baseline in (INITIAL, RUNNING)]
    return thresholds + [ForkRule("probability", INITIAL, name) for name in ENTROPY_NORMALIZATIONS]


@dataclass(frozen=True, slots=True)
class Forks:
    """Per node, [N]: the expected number of children, and the probability of at least one child."""

    children: np.ndarray
    forked: np.ndarray


def expected_forks(rule: ForkRule, nodes: Sequence[Node], params: BranchingParams, vocab_size: int) -> Forks:
    """The forks that `rule` makes at the nodes, if it decides each node by itself."""
    chance = CHILD_PROBABILITIES[rule.branching]
    rises = deltas(nodes, rule.baseline, rule.normalization, vocab_size)
    child = np.array([chance(float(rise), params) for rise in rises])
    return Forks(params.branch_width * child, 1 - (1 - child) ** params.branch_width)


def _threshold(delta: float, params: BranchingParams) -> float:
    # The rule draws no random number.
    return float(BRANCHING_RULES["threshold"](NodeEvidence(delta), params, np.random.default_rng(0)) > 0)


def _probability(delta: float, params: BranchingParams) -> float:
    return min(max(branch_probability(NodeEvidence(delta), params), 0.0), 1.0)


#: Rule -> `(dH, params) -> the probability of each of the Z children`.
CHILD_PROBABILITIES: dict[str, Callable[[float, BranchingParams], float]] = {
    "threshold": _threshold,
    "probability": _probability,
}
