"""Computes the advantage of each node of a question's tree from the rewards of its leaves (docs/design.md).

L: the leaves that count, in `TreeLayout.leaves` order. N: the nodes of the layout. T: packed tokens. Results are
float64.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from rllib_arpo.core.token_counts import path_tokens
from rllib_arpo.core.tree import QuestionTree, TreeLayout

#: Added to a standard deviation before dividing by it.
STD_EPSILON = 1e-6


def group_advantages(rewards: np.ndarray, normalize_std: bool = True) -> np.ndarray:
    """`A_l = (r_l - mean(r)) / (std(r) + 1e-6)` over one question's leaves (GRPO, arXiv 2402.03300).

    Args:
        rewards: [L].
        normalize_std: False leaves the division out (Dr. GRPO, arXiv 2503.20783).

    Returns:
        [L]; std has ddof = 1, so a single leaf has advantage 0. Equal rewards have advantage 0, exactly.
    """
    rewards = np.asarray(rewards, dtype=np.float64)
    mean, std = mean_and_std(rewards)
    centered = rewards - mean
    return centered / (std + STD_EPSILON) if normalize_std else centered


class MeanAndStd(NamedTuple):
    """Mean and standard deviation (ddof = 1) of some values."""

    mean: float
    std: float


#: The result of `mean_and_std` without values.
NO_VALUES = MeanAndStd(0.0, 0.0)


def mean_and_std(values: np.ndarray) -> MeanAndStd:
    """Mean and standard deviation (ddof = 1) of `values` [n].

    If all values are equal, their mean is exactly this value, not rounded, and the deviation 0. Without values both
    are 0.
    """
    if len(values) == 0:
        return NO_VALUES
    if values.min() == values.max():
        return MeanAndStd(float(values[0]), 0.0)
    return MeanAndStd(float(values.mean()), float(values.std(ddof=1)))


def reward_scale(std: float) -> float:
    """The divisor of rewards with this standard deviation: `std + 1e-6`.

    It is 1 if all rewards are equal (up to rounding). Their advantages are 0 then, but the KL penalty and earlier
    rewards are divided by the same number, and 1e-6 would make them a million times larger.
    """
    return std + STD_EPSILON if std > STD_EPSILON else 1.0


def earlier_rewards(tree: QuestionTree, layout: TreeLayout) -> np.ndarray:
    """`P_n`, the sum of the rewards on the path above each node, [N] float64. Node n could not change them."""
    earlier = np.zeros(len(layout.nodes))
    for n, node in enumerate(layout.nodes):
        if node.parent >= 0:
            earlier[n] = earlier[node.parent] + tree.turn_of(layout.nodes[node.parent]).reward
    return earlier


def overlong_penalty(num_generated: int, max_response_tokens: int, overlong_buffer_tokens: int) -> float:
    """DAPO's soft penalty for a long response, to be added to the reward (arXiv 2503.14476, eq. 13).

    It is 0 up to `max_response_tokens - overlong_buffer_tokens`, then falls linearly to -1 at `max_response_tokens`.

    Args:
        num_generated: tokens of the response, counted as `max_response_tokens` counts them.
        max_response_tokens: the hard limit.
        overlong_buffer_tokens: the length of the slope, >= 1.

    Returns:
        a value in [-1, 0].
    """
    excess = num_generated - (max_response_tokens - overlong_buffer_tokens)
    return -min(max(excess / overlong_buffer_tokens, 0.0), 1.0)


def _branch_factors(layout: TreeLayout) -> np.ndarray:
    """L times the leaf's share; every node divides its own share equally among its branches.

    Without masked leaves the share is `1/N * prod 1/(children + 1)` over the forks on the path, with N roots. This
    weight makes the tree estimator unbiased if a fork depends on its node alone. A branch below which every leaf is
    masked counts as not sampled; the shares add up to 1 in any case, so the factors add up to L.
    """
    num_leaves = len(layout.leaves)
    last_node = last_nodes(layout)
    branches = np.zeros(len(layout.nodes) + 1)
    for node in layout.nodes:
        branches[node.parent] += 1
    np.add.at(branches, last_node, 1)

    # Position -1 (the last entry) is the prompt, whose branches are the roots.
    share = np.ones(len(layout.nodes) + 1)
    for i, node in enumerate(layout.nodes):
        share[i] = share[node.parent] / branches[node.parent]
    return num_leaves * share[last_node] / branches[last_node]


#: name -> `layout -> factor[L]`; the factors of a question add up to L. "uniform" is ARPO's default and biased
#: (docs/limits.md, "The gradient").
LEAF_WEIGHTINGS: dict[str, Callable[[TreeLayout], np.ndarray]] = {
    "uniform": lambda layout: np.ones(len(layout.leaves)),
    "branch": _branch_factors,
}


@dataclass(frozen=True, slots=True)
class LossAggregation:
    """A formula for the weights of tokens: `w_l = factor_l * scale_l / sum over the minibatch of factor_l * mass_l`.

    Attributes:
        scale: `(path_tokens[L], max_response_tokens) -> [L]`.
        mass: `path_tokens[L] -> [L]`.
    """

    scale: Callable[[np.ndarray, int], np.ndarray]
    mass: Callable[[np.ndarray], np.ndarray]


def _ones(tokens: np.ndarray, *_: int) -> np.ndarray:
    return np.ones(len(tokens))


#: "token_mean" (DAPO): w = `1 / sum |o|`; "sequence_mean" (GRPO): w = `1 / (#leaves |o|)`; "constant" (Dr. GRPO):
#: w = 1 / (#leaves max_response_tokens). A leaf without a token still counts as a leaf.
LOSS_AGGREGATIONS: dict[str, LossAggregation] = {
    "token_mean": LossAggregation(scale=_ones, mass=lambda tokens: tokens.astype(np.float64)),
    "sequence_mean": LossAggregation(scale=lambda tokens, _: 1.0 / np.maximum(tokens, 1), mass=_ones),
    "constant": LossAggregation(scale=lambda tokens, limit: np.full(len(tokens), 1.0 / limit), mass=_ones),
}


def leaf_weights(
    tree: QuestionTree,
    layout: TreeLayout,
    loss_aggregation: str,
    leaf_weighting: str,
    max_response_tokens: int,
) -> np.ndarray:
    """Unnormalised weights of the leaves; docs/design.md's w_l is a weight over the minibatch's `loss_denominator`.

    Args:
        tree, layout: the question; the layout fixes which leaves count and their order.
        loss_aggregation: a key of `LOSS_AGGREGATIONS`.
        leaf_weighting: a key of `LEAF_WEIGHTINGS`.
        max_response_tokens: only "constant" reads it.

    Returns:
        [L], >= 0.

    Raises:
        KeyError: a name is unknown.
    """
    factors = LEAF_WEIGHTINGS[leaf_weighting](layout)
    return factors * LOSS_AGGREGATIONS[loss_aggregation].scale(path_tokens(tree, layout), max_response_tokens)


def loss_denominator(tree: QuestionTree, layout: TreeLayout, loss_aggregation: str, leaf_weighting: str) -> float:
    """One question's summand in the denominator of its minibatch, which is a sum over all ranks and passes.

    "token_mean": the sum of `factor * |o_l|`; otherwise the sum of the factors, which is the number of leaves.
    """
    mass = LOSS_AGGREGATIONS[loss_aggregation].mass(path_tokens(tree, layout))
    return float((LEAF_WEIGHTINGS[leaf_weighting](layout) * mass).sum())


@dataclass(frozen=True, slots=True)
class NodeAttribution:
    """The loss's input per node, [N] float64 each: `a_pos` >= 0, `a_neg` <= 0 and `weight` >= 0 (W)."""

    a_pos: np.ndarray
    a_neg: np.ndarray
    weight: np.ndarray


def _range_sums(values: np.ndarray, begin: np.ndarray, end: np.ndarray) -> np.ndarray:
    """`sum(values[b:e])` for each of N half-open ranges."""
    prefix = np.concatenate([[0.0], np.cumsum(values, dtype=np.float64)])
    return prefix[end] - prefix[begin]


def _below(begin: np.ndarray, end: np.ndarray, num_leaves: int) -> np.ndarray:
    """[N, L] bool: whether a leaf is below a node."""
    leaves = np.arange(num_leaves)
    return (begin[:, None] <= leaves) & (leaves < end[:, None])


def soft_attribution(
    advantages: np.ndarray,
    weights: np.ndarray,
    leaf_begin: np.ndarray,
    leaf_end: np.ndarray,
    offsets: np.ndarray | None = None,
) -> NodeAttribution:
    """Every leaf drives its whole path: `a_pos = sum w max(A, 0)`, `a_neg = sum w min(A, 0)` over the leaves below.

    Args:
        advantages: [L], or [N, L] if they differ between nodes; a node ignores leaves that are not below it.
        weights: [L].
        leaf_begin, leaf_end: [N], the half-open range of the leaves below each node.
        offsets: [N], subtracted from the advantages at each node (`to_go_offsets`); None: 0.

    Returns:
        [N] each, with `weight = sum w`.
    """
    weight = _range_sums(weights, leaf_begin, leaf_end)
    if offsets is None and advantages.ndim == 1:
        a_pos = _range_sums(weights * np.maximum(advantages, 0.0), leaf_begin, leaf_end)
        a_neg = _range_sums(weights * np.minimum(advantages, 0.0), leaf_begin, leaf_end)
        return NodeAttribution(a_pos, a_neg, weight)
    judged = advantages if offsets is None else advantages - offsets[:, None]
    weighted = np.where(_below(leaf_begin, leaf_end, len(weights)), weights * judged, 0.0)
    return NodeAttribution(np.maximum(weighted, 0.0).sum(1), np.minimum(weighted, 0.0).sum(1), weight)


def hard_attribution(
    advantages: np.ndarray,
    weights: np.ndarray,
    leaf_begin: np.ndarray,
    leaf_end: np.ndarray,
    offsets: np.ndarray | None = None,
) -> NodeAttribution:
    """A shared token gets the unweighted mean advantage of its leaves: `a_pos = W max(mean A, 0)`, `a_neg` likewise.

    This is the paper's hard estimation, counted once per leaf. Arguments and result: see `soft_attribution`.
    """
    if advantages.ndim == 1:
        sums = _range_sums(advantages, leaf_begin, leaf_end)
    else:
        sums = np.where(_below(leaf_begin, leaf_end, len(weights)), advantages, 0.0).sum(1)
    mean = sums / (leaf_end - leaf_begin)
    if offsets is not None:
        mean = mean - offsets
    weight = _range_sums(weights, leaf_begin, leaf_end)
    return NodeAttribution(weight * np.maximum(mean, 0.0), weight * np.minimum(mean, 0.0), weight)


#: name -> `(advantages[L or N, L], weights[L], leaf_begin[N], leaf_end[N], offsets[N] or None) -> NodeAttribution`.
ATTRIBUTIONS: dict[str, Callable[..., NodeAttribution]] = {
    "soft": soft_attribution,
    "hard": hard_attribution,
}


def leaf_ranges(layout: TreeLayout) -> tuple[np.ndarray, np.ndarray]:
    """(`leaf_begin`, `leaf_end`), [N] int64 each, of the layout's nodes."""
    begin = np.array([node.leaf_begin for node in layout.nodes], dtype=np.int64)
    end = np.array([node.leaf_end for node in layout.nodes], dtype=np.int64)
    return begin, end


def node_depths(layout: TreeLayout) -> np.ndarray:
    """How many nodes are above each node on its path, [N] int64."""
    # The last entry, at index -1, is the prompt.
    depth = np.full(len(layout.nodes) + 1, -1, dtype=np.int64)
    for n, node in enumerate(layout.nodes):
        depth[n] = depth[node.parent] + 1
    return depth[:-1]


def last_nodes(layout: TreeLayout) -> np.ndarray:
    """The last node on each leaf's path, [L] int64; -1 if it has none."""
    last = np.full(len(layout.leaves), -1, dtype=np.int64)
    for n, node in enumerate(layout.nodes):
        last[node.leaf_begin : node.leaf_end] = n
    return last


def to_go_offsets(tree: QuestionTree, layout: TreeLayout, factors: np.ndarray, scale: float) -> np.ndarray:
    """Offsets that remove earlier rewards from the advantages at each node, [N] float64.

    `c_n = (P_n - mean P) / scale`: P_n are the earlier rewards, and the mean is taken over the leaves with a turn at
    the depth of n. `A_l - c_n` compares the leaf's reward-to-go with the others': the policy gradient theorem allows
    us to drop `P_n`, and `mean P` also drops earlier rewards from the baseline in `A_l`. If only last turns are
    rewarded, c is 0.

    Args:
        factors: [L], how much each leaf counts in the mean (`LEAF_WEIGHTINGS`); with "branch" the expected gradient is
            as unbiased as without an offset.
        scale: the number by which the rewards were divided to get `A_l`.
    """
    earlier = earlier_rewards(tree, layout)
    if not len(earlier):
        return earlier
    weight = _range_sums(factors, *leaf_ranges(layout))
    depth = node_depths(layout)
    # Subtracting one of them makes equal earlier rewards exactly 0; subtracting their mean would leave rounding errors.
    _, first = np.unique(depth, return_index=True)
    earlier -= earlier[first][depth]
    means = np.bincount(depth, weight * earlier) / np.bincount(depth, weight)
    return (earlier - means[depth]) / scale


def path_stops(parent: np.ndarray, end: np.ndarray, loss_mask: np.ndarray) -> np.ndarray:
    """Where the path of each loss token ends, if no two trajectories share a generated token.

    Args:
        parent, end, loss_mask: [T], of a packed pass (`PackedTree`), in which trajectories share at most the prompt.

    Returns:
        [K] int64: loss tokens k to stops[k] - 1, counted among the loss tokens, are on one path and end it.

    Raises:
        ValueError: several trajectories share a generated token, which then has no single path to its end.
    """
    tokens = np.arange(len(parent))
    # A token is shared if a token below it branches off from anywhere but the token right before.
    branch_starts = _range_sums((parent != tokens - 1).astype(np.float64), tokens + 1, end)
    if np.any(branch_starts[loss_mask] > 0):
        raise ValueError("KL in the reward needs trajectories without forks, but a generated token is shared")
    return np.cumsum(loss_mask)[end[loss_mask] - 1]
