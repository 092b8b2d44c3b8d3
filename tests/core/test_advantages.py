"""Advantages, weights and attribution by hand; `tests/learner/plain.py` sums them over leaves."""

import numpy as np
import pytest

from rllib_arpo.core.advantages import (
    LEAF_WEIGHTINGS,
    group_advantages,
    hard_attribution,
    leaf_ranges,
    leaf_weights,
    loss_denominator,
    overlong_penalty,
    path_stops,
    reward_scale,
    soft_attribution,
    to_go_offsets,
)
from rllib_arpo.core.packing import concatenate, pack_tree
from rllib_arpo.core.tree import QuestionTree, StopReason, depth_first_layout
from tests.helpers.trees import make_trajectory, make_tree, make_turn


def _forked_tree() -> QuestionTree:
    """Roots "0" (1 + 2 tokens) and "1" (4 tokens); "0.0" (1 + 1) and "0.1" (1 + 3) fork from "0" after one token."""
    return make_tree(
        [1],
        [
            make_trajectory("0", [make_turn([2], [3]), make_turn([4, 5])]),
            make_trajectory("1", [make_turn([6, 7, 8, 9])]),
            make_trajectory("0.0", [make_turn([10])], num_inherited_turns=1),
            make_trajectory("0.1", [make_turn([11, 12, 13])], num_inherited_turns=1),
        ],
    )


def test_equal_rewards_are_not_scaled():
    assert [reward_scale(std) for std in (0.25, 0.0, 1e-17)] == [0.25 + 1e-6, 1.0, 1.0]


@pytest.mark.parametrize("rewards", [[], [0.7], [0.1, 0.1, 0.1], [-1.0] * 16])
def test_a_group_without_signal_has_advantage_zero_exactly(rewards: list[float]):
    assert group_advantages(np.array(rewards)).tolist() == [0.0] * len(rewards)


@pytest.mark.parametrize(
    ("num_generated", "penalty"), [(0, 0.0), (60, 0.0), (61, -0.025), (80, -0.5), (100, -1.0), (150, -1.0)]
)
def test_overlong_penalty_by_hand(num_generated: int, penalty: float):
    assert overlong_penalty(num_generated, 100, 40) == pytest.approx(penalty)


@pytest.mark.parametrize(
    ("aggregation", "weighting", "weights", "denominator"),
    [
        ("token_mean", "uniform", [1.0, 1.0, 1.0, 1.0], 13.0),
        ("sequence_mean", "uniform", [1 / 3, 1 / 2, 1 / 4, 1 / 4], 4.0),
        ("constant", "uniform", [0.1, 0.1, 0.1, 0.1], 4.0),
        # Two roots; "0" shares its half among three branches: shares 1/6, 1/6, 1/6, 1/2, times L = 4.
        ("token_mean", "branch", [2 / 3, 2 / 3, 2 / 3, 2.0], 2.0 + 4 / 3 + 8 / 3 + 8.0),
        ("sequence_mean", "branch", [2 / 9, 1 / 3, 1 / 6, 1 / 2], 4.0),
    ],
)
def test_leaf_weights_by_hand(aggregation: str, weighting: str, weights: list[float], denominator: float):
    tree = _forked_tree()
    layout = depth_first_layout(tree)
    np.testing.assert_allclose(leaf_weights(tree, layout, aggregation, weighting, 10), weights, rtol=1e-14)
    assert loss_denominator(tree, layout, aggregation, weighting) == pytest.approx(denominator, rel=1e-14)


def test_a_masked_branch_hands_its_share_to_its_siblings():
    tree = make_tree(
        [1],
        [
            make_trajectory("0", [make_turn([2], [3]), make_turn([4])], stop_reason=StopReason.BROKEN_TOOL),
            make_trajectory("1", [make_turn([5])]),
            make_trajectory("0.0", [make_turn([6])], num_inherited_turns=1),
        ],
    )
    np.testing.assert_allclose(LEAF_WEIGHTINGS["branch"](depth_first_layout(tree)), [1.0, 1.0], rtol=1e-14)


def test_a_leaf_without_tokens_counts_as_a_leaf_and_weighs_nothing_infinite():
    tree = make_tree([1], [make_trajectory("0", [make_turn([])]), make_trajectory("1", [make_turn([2, 3])])])
    layout = depth_first_layout(tree)
    assert leaf_weights(tree, layout, "sequence_mean", "uniform", 10).tolist() == [1.0, 0.5]
    assert loss_denominator(tree, layout, "sequence_mean", "uniform") == 2.0


def test_attribution_by_hand():
    # Node 0 has leaves (A, w) = (2, 1), (-1, 0.5), (0.5, 2); node 1 the last two; node 2 the second alone.
    arguments = np.array([2.0, -1.0, 0.5]), np.array([1.0, 0.5, 2.0]), np.array([0, 1, 1]), np.array([3, 3, 2])
    soft = soft_attribution(*arguments)
    np.testing.assert_allclose(soft.a_pos, [3.0, 1.0, 0.0], rtol=1e-14)
    np.testing.assert_allclose(soft.a_neg, [-0.5, -0.5, -0.5], rtol=1e-14)
    np.testing.assert_allclose(soft.weight, [3.5, 2.5, 0.5], rtol=1e-14)
    hard = hard_attribution(*arguments)
    # Means 0.5, -0.25, -1.
    np.testing.assert_allclose(hard.a_pos, [1.75, 0.0, 0.0], rtol=1e-14)
    np.testing.assert_allclose(hard.a_neg, [0.0, -0.625, -0.5], rtol=1e-14)
    np.testing.assert_allclose(hard.weight, [3.5, 2.5, 0.5], rtol=1e-14)


def test_offsets_to_go_by_hand():
    """ "0" and its fork share a turn that pays 0.5; the first turn of "1" pays 0.2, and "1" counts 2."""
    tree = make_tree(
        [1],
        [
            make_trajectory("0", [make_turn([2], [3], reward=0.5), make_turn([4])]),
            make_trajectory("1", [make_turn([5], [3], reward=0.2), make_turn([6])]),
            make_trajectory("0.0", [make_turn([7])], num_inherited_turns=1),
        ],
    )
    offsets = to_go_offsets(tree, depth_first_layout(tree), np.array([1.0, 1.0, 2.0]), scale=2.0)
    # In the order 0, its end, 0.0, 1, its end; the mean at the second turns is 0.35.
    np.testing.assert_allclose(offsets, [0.0, 0.075, 0.075, 0.0, -0.075], atol=1e-15)


def _packed(tree: QuestionTree):
    layout = depth_first_layout(tree)
    ones = np.ones(len(layout.leaves))
    return pack_tree(tree, layout, soft_attribution(ones, ones, *leaf_ranges(layout)))


def test_path_stops_by_hand():
    tree = make_tree(
        [1, 2],
        [make_trajectory("0", [make_turn([3, 4], [5, 6]), make_turn([7])]), make_trajectory("1", [make_turn([8, 9])])],
    )
    packed = concatenate([_packed(tree), _packed(tree)])
    # Of each tree three generated tokens are on one path, and two on another.
    assert path_stops(packed.parent, packed.end, packed.loss_mask).tolist() == [3, 3, 3, 5, 5, 8, 8, 8, 10, 10]


def test_path_stops_refuse_forks():
    packed = _packed(_forked_tree())
    with pytest.raises(ValueError, match="without forks"):
        path_stops(packed.parent, packed.end, packed.loss_mask)
