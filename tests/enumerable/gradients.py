"""The learner's gradient of every tree that can be sampled, weighted with the tree's probability."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from rllib_arpo.core.advantages import (
    ATTRIBUTIONS,
    LEAF_WEIGHTINGS,
    leaf_ranges,
    leaf_weights,
    loss_denominator,
    to_go_offsets,
)
from rllib_arpo.core.entropy import entropy_factor, entropy_statistics, turn_entropies, unique_entropies
from rllib_arpo.core.tree import QuestionTree, TreeLayout, Turn, depth_first_layout
from tests.enumerable.distribution import Distribution
from tests.enumerable.problem import History, TabularProblem


def _rewards(rewards: np.ndarray, _tree: QuestionTree, _layout: TreeLayout) -> np.ndarray:
    return rewards


@dataclass(frozen=True, slots=True)
class Estimator:
    """How the learner turns a tree, alone in its minibatch, into a gradient.

    `advantages` is `(rewards[L], tree, layout) -> [L]` or `[N, L]`.
    """

    leaf_weighting: str
    advantages: Callable[[np.ndarray, QuestionTree, TreeLayout], np.ndarray] = _rewards
    entropy_advantage_coeff: float = 0.0
    to_go: bool = False


def histories_before(tree: QuestionTree, layout: TreeLayout) -> list[History]:
    """Of each node the tokens that were generated above it."""
    before: list[History] = []
    for node in layout.nodes:
        if node.parent < 0:
            before.append(())
        else:
            above = layout.nodes[node.parent]
            turn = tree.turn_of(above)
            before.append((*before[node.parent], *turn.token_ids.tolist()))
    return before


def expected_gradients(
    problem: TabularProblem, trees: Distribution, estimators: Sequence[Estimator]
) -> list[np.ndarray]:
    """E[estimated gradient] of each estimator over the trees, exactly: [R, V] each."""
    expected = [np.zeros_like(problem.logits) for _ in estimators]
    for probability, tree in trees:
        layout = depth_first_layout(tree)
        for sum_, estimator in zip(expected, estimators, strict=True):
            sum_ += probability * estimated_gradient(problem, tree, layout, estimator)
    return expected


def estimated_gradient(
    problem: TabularProblem, tree: QuestionTree, layout: TreeLayout, estimator: Estimator
) -> np.ndarray:
    """The learner's gradient [R, V] of one tree at ratio 1; every leaf weighs the same."""
    rewards = tree.returns()[list(layout.leaves)]
    advantages = estimator.advantages(rewards, tree, layout)
    weights = leaf_weights(tree, layout, "constant", estimator.leaf_weighting, max_response_tokens=1)
    factors = LEAF_WEIGHTINGS[estimator.leaf_weighting](layout)
    offsets = to_go_offsets(tree, layout, factors, scale=1.0) if estimator.to_go else None
    nodes = ATTRIBUTIONS["soft"](advantages, weights, *leaf_ranges(layout), offsets)
    per_node = (nodes.a_pos + nodes.a_neg) / loss_denominator(tree, layout, "constant", estimator.leaf_weighting)

    factors_of = _entropy_factors(tree, layout, estimator.entropy_advantage_coeff)
    taken = np.zeros_like(problem.logits)
    for node, advantage, history in zip(layout.nodes, per_node, histories_before(tree, layout), strict=True):
        turn = tree.turn_of(node)
        for token, factor in zip(turn.token_ids.tolist(), factors_of(turn), strict=True):
            taken[problem.rows[history], token] += advantage * factor
            history = (*history, token)
    # The gradient of ln pi(token | history) by the logits of its row is onehot(token) - pi(. | history).
    return taken - taken.sum(axis=1, keepdims=True) * problem.probabilities


def _entropy_factors(tree: QuestionTree, layout: TreeLayout, coeff: float) -> Callable[[Turn], np.ndarray]:
    """Of a turn of the tree: what the advantage of each of its tokens is multiplied by, [n]."""
    if not coeff:
        return lambda turn: np.ones(len(turn.token_ids))
    statistics = entropy_statistics([unique_entropies(tree, layout)])
    return lambda turn: entropy_factor(torch.tensor(turn_entropies(tree, turn)).double(), statistics, coeff).numpy()
