"""The learner pipeline on one question, with literal expectations.

prompt [1, 2]
|- "0": turn [10, 11], tool [90], turn [12]             reward 1
|  `- "0.0": turn [13, 14, 15] after the tool           reward 0
|- "1": turn [20]                                       reward 1
`- "2": turn [30], stopped by the deadline              reward 0, does not count
"""

import numpy as np
import pytest

from rllib_arpo import ARPOConfig
from rllib_arpo.connectors import build_learner_pipeline
from rllib_arpo.core.advantages import MeanAndStd
from rllib_arpo.core.columns import LEAF_ADVANTAGES, PACKED_TREES, REWARD_SCALE, REWARD_STATISTICS
from rllib_arpo.core.tree import StopReason, TreeLayout, TreeNode
from rllib_arpo.rollout.episodes import TreeEpisode
from tests.helpers.trees import make_trajectory, make_tree, make_turn

QUESTION = make_tree(
    [1, 2],
    [
        make_trajectory("0", [make_turn([10, 11], [90], log_prob=-0.5), make_turn([12])], reward=1.0),
        make_trajectory("0.0", [make_turn([13, 14, 15], log_prob=-2.0)], num_inherited_turns=1),
        make_trajectory("1", [make_turn([20])], reward=1.0),
        make_trajectory("2", [make_turn([30])], stop_reason=StopReason.DEADLINE),
    ],
)


def run(*trees, **overrides):
    """The columns that the learner gets; the statistics are those of a larger batch."""
    settings = {"max_response_tokens": 8, "loss_aggregation": "token_mean", "leaf_weighting": "uniform"} | overrides
    pipeline = build_learner_pipeline(ARPOConfig().update_from_dict(settings))
    shared = {REWARD_STATISTICS: MeanAndStd(mean=0.5, std=2.0 - 1e-6)}
    return pipeline(rl_module=None, episodes=[TreeEpisode(tree) for tree in trees], shared_data=shared)


def test_from_episodes_to_packed_trees():
    batch = run(QUESTION)
    [computed], [packed] = batch[LEAF_ADVANTAGES], batch[PACKED_TREES]
    assert computed.tree == QUESTION
    nodes = (TreeNode(0, 0, -1, 0, 2), TreeNode(0, 1, 0, 0, 1), TreeNode(1, 0, 0, 1, 2), TreeNode(2, 0, -1, 2, 3))
    assert computed.layout == TreeLayout(nodes, leaves=(0, 1, 2))
    assert packed.token_ids.tolist() == [1, 2, 10, 11, 90, 12, 13, 14, 15, 20]
    assert packed.behavior_log_probs.tolist() == [0, 0, -0.5, -0.5, 0, -1, -2, -2, -2, -1]
    assert packed.behavior_entropies.tolist() == [0] * 10
    good, bad = 0.577349, -1.154699
    np.testing.assert_allclose(packed.a_pos, [0, 0, good, good, 0, good, 0, 0, 0, good], atol=1e-6)
    np.testing.assert_allclose(packed.a_neg, [0, 0, bad, bad, 0, 0, bad, bad, bad, 0], atol=1e-6)
    np.testing.assert_array_equal(packed.weight, [0, 0, 2, 2, 0, 1, 1, 1, 1, 1])
    [with_entropies] = run(QUESTION, entropy_advantage_coeff=0.2)[PACKED_TREES]
    assert with_entropies.behavior_entropies.tolist() == [0, 0, 1, 1, 0, 1, 1, 1, 1, 1]


@pytest.mark.parametrize(("options", "rewards", "advantages", "scale"), [
    # mean 2/3, std sqrt(1/3) + 1e-6: 1/3 / 0.5773513 = 0.577349 and -2/3 / 0.5773513 = -1.154699.
    ({}, [1.0, 0.0, 1.0], [0.577349, -1.154699, 0.577349], 1.0),
    ({"normalize_std": False}, [1.0, 0.0, 1.0], [1 / 3, -2 / 3, 1 / 3], 1.0),
    ({"baseline": "batch"}, [1.0, 0.0, 1.0], [0.25, -0.25, 0.25], 2.0),
    # The paths are 4, 6 and 1 tokens long, one of them from the tool; the slope goes from 3 to 7.
    ({"overlong_buffer_tokens": 4, "max_response_tokens": 7, "normalize_std": False}, [0.75, -0.75, 1.0],
     [5 / 12, -13 / 12, 2 / 3], 1.0),
])  # fmt: skip
def test_rewards_and_advantages_of_the_leaves(options, rewards, advantages, scale):
    batch = run(QUESTION, **options)
    [computed] = batch[LEAF_ADVANTAGES]
    np.testing.assert_array_equal(computed.rewards, rewards)
    np.testing.assert_allclose(computed.advantages, advantages, atol=1e-6)
    assert batch[REWARD_SCALE] == scale


def test_rewards_to_go():
    """Of two roots with the same return, one is paid at its first turn and the other at its second."""
    early = make_trajectory("0", [make_turn([2], [3], reward=1.0), make_turn([4])])
    late = make_trajectory("1", [make_turn([5], [3]), make_turn([6])], reward=1.0)
    tree = make_tree([1], [early, late])
    # At the first turns both have all before them; at the second one has earned 1 and the other will.
    for options, scale in (({}, 1.0), ({"baseline": "batch"}, 2.0)):
        [to_go], [total] = (run(tree, returns=kind, **options)[PACKED_TREES] for kind in ("to_go", "total"))
        both = np.where(total.loss_mask, total.a_pos + total.a_neg, 0)
        np.testing.assert_allclose(to_go.a_pos + to_go.a_neg - both, np.array([0, 0, 0, -0.5, 0, 0, 0.5]) / scale)
        assert np.any(both) == (options != {})


def test_a_shard_without_episodes():
    assert run()[PACKED_TREES] == []
