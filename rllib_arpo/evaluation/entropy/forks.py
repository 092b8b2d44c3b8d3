"""The forks that each rule would have made at the nodes, given enough budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from rllib_arpo.core.branching import BRANCHING_RULES, BranchingParams, NodeEvidence, looks_at_entropy
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
    """All rules that look at the entropy, from both baselines, in units of `normalization`; "probability" in others."""
    rules = [
        ForkRule(name, baseline, normalization)
        for name in filter(looks_at_entropy, BRANCHING_RULES)
        for baseline in (INITIAL, RUNNING)
    ]
    others = [unit for unit in ENTROPY_NORMALIZATIONS if unit != normalization]
    return rules + [ForkRule("probability", INITIAL, unit) for unit in others]


@dataclass(frozen=True, slots=True)
class Forks:
    """Per node, [N]: the expected number of children, and the probability of at least one child."""

    children: np.ndarray
    forked: np.ndarray


def expected_forks(rule: ForkRule, nodes: Sequence[Node], params: BranchingParams, vocab_size: int) -> Forks:
    """The forks that `rule` makes at the nodes, if it decides each node by itself."""
    chance = BRANCHING_RULES[rule.branching].chance
    assert chance is not None  # `fork_rules` has no others
    rises = deltas(nodes, rule.baseline, rule.normalization, vocab_size)
    child = np.array([chance(NodeEvidence(float(rise)), params) for rise in rises])
    return Forks(params.branch_width * child, 1 - (1 - child) ** params.branch_width)
