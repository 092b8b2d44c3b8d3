"""Each connector alone, with literal expectations on the question of conftest.py."""

from __future__ import annotations

import numpy as np
import pytest
from ray.rllib.connectors.learner import LearnerConnectorPipeline

from rllib_arpo import ARPOConfig
from rllib_arpo.connectors import PipelineSettings, build_learner_pipeline
from rllib_arpo.connectors.steps import (
    Attribution,
    BatchAdvantage,
    DepthFirstPacking,
    EpisodesToTrees,
    GroupAdvantage,
    LeafWeights,
    OverlongPenalty,
    RewardsToGo,
    TreeAdvantage,
)
from rllib_arpo.core.advantages import NodeAttribution
from rllib_arpo.core.columns import (
    LAYOUTS,
    LEAF_ADVANTAGES,
    LEAF_REWARDS,
    LEAF_WEIGHTS,
    NODE_ATTRIBUTIONS,
    PACKED_TREES,
    REWARD_SCALE,
    REWARD_STATISTICS,
    TREES,
)
from rllib_arpo.core.tree import TreeLayout, TreeNode, depth_first_layout
from rllib_arpo.learner.training_data import RewardStatistics
from rllib_arpo.rollout.episodes import tree_to_episode
from tests.helpers.trees import make_trajectory, make_tree, make_turn, paid

#: Nodes: the turns of "0", the turn of "0.0", the turn of "1". Leaves: "0", "0.0", "1".
LAYOUT = TreeLayout(
    nodes=(TreeNode(0, 0, -1, 0, 2), TreeNode(0, 1, 0, 0, 1), TreeNode(3, 0, 0, 1, 2), TreeNode(1, 0, -1, 2, 3)),
    leaves=(0, 3, 1),
)


def call(connector, **columns):
    return connector(
        rl_module=None,
        batch=columns,
        episodes=[],
        shared_data={REWARD_STATISTICS: RewardStatistics(mean=0.5, std=2.0 - 1e-6)},
    )


def test_episodes_to_trees(question):
    batch = EpisodesToTrees()(rl_module=None, batch={}, episodes=[tree_to_episode(question)])

    [tree] = batch[TREES]
    # In logical order, whatever the order of appearance.
    assert [t.agent_id for t in tree.trajectories] == ["0", "0.0", "1", "2"]
    [layout] = batch[LAYOUTS]
    assert layout == depth_first_layout(tree)
    assert (layout.leaves, len(layout.nodes)) == ((0, 1, 2), 4)
    np.testing.assert_array_equal(batch[LEAF_REWARDS], [[1.0, 0.0, 1.0]])


def test_overlong_penalty(question):
    # The paths of "0", "0.0" and "1" are 4, 6 and 1 tokens long, one of them from the tool; the slope goes from 3 to 7.
    connector = OverlongPenalty(max_response_tokens=7, overlong_buffer_tokens=4)

    batch = call(connector, **{TREES: [question], LAYOUTS: [LAYOUT], LEAF_REWARDS: [np.array([1.0, 0.0, 1.0])]})

    np.testing.assert_array_equal(batch[LEAF_REWARDS], [[0.75, -0.75, 1.0]])


def test_group_advantage_has_ddof_1():
    rewards = [np.array([1.0, 0.0, 1.0]), np.array([1.0, 1.0]), np.array([1.0]), np.array([])]

    batch = call(GroupAdvantage(), **{LEAF_REWARDS: rewards})

    # mean 2/3, std sqrt(1/3) + 1e-6: 1/3 / 0.5773513 = 0.577349 and -2/3 / 0.5773513 = -1.154699.
    np.testing.assert_allclose(batch[LEAF_ADVANTAGES][0], [0.577349, -1.154699, 0.577349], atol=1e-6)
    np.testing.assert_array_equal(batch[LEAF_ADVANTAGES][1], [0.0, 0.0])
    np.testing.assert_array_equal(batch[LEAF_ADVANTAGES][2], [0.0])
    assert len(batch[LEAF_ADVANTAGES][3]) == 0


def test_group_advantage_without_std():
    batch = call(GroupAdvantage(normalize_std=False), **{LEAF_REWARDS: [np.array([1.0, 0.0, 0.5])]})

    np.testing.assert_allclose(batch[LEAF_ADVANTAGES], [[0.5, -0.5, 0.0]])
    assert batch[REWARD_SCALE] == 1.0


def test_tree_advantage_is_within_the_tree_plus_between_trees(question):
    columns = {LEAF_REWARDS: [np.array([1.0, 0.0, 1.0])], TREES: [question], LAYOUTS: [LAYOUT]}

    batch = call(TreeAdvantage(), **columns)

    # Leaves "0", "0.0", "1". Between as in GroupAdvantage; within the tree of "0": 0.5 / (sqrt(0.5) + 1e-6) = 0.707106.
    np.testing.assert_allclose(batch[LEAF_ADVANTAGES], [[1.284455, -1.861805, 0.577349]], atol=1e-6)
    assert batch[REWARD_SCALE] == 1.0
    [unnormalised] = call(TreeAdvantage(normalize_std=False), **columns)[LEAF_ADVANTAGES]
    np.testing.assert_allclose(unnormalised, [1 / 3 + 1 / 2, -2 / 3 - 1 / 2, 1 / 3])


def test_batch_advantage_reads_the_statistics_of_the_whole_batch():
    batch = call(BatchAdvantage(), **{LEAF_REWARDS: [np.array([1.5, 0.5]), np.array([-1.5])]})

    np.testing.assert_allclose(batch[LEAF_ADVANTAGES][0], [0.5, 0.0])
    np.testing.assert_allclose(batch[LEAF_ADVANTAGES][1], [-1.0])
    assert batch[REWARD_SCALE] == 2.0


@pytest.mark.parametrize(
    ("loss_aggregation", "leaf_weighting", "expected"),
    [
        ("token_mean", "uniform", [1.0, 1.0, 1.0]),
        ("sequence_mean", "uniform", [1 / 3, 1 / 5, 1.0]),
        ("constant", "uniform", [0.125, 0.125, 0.125]),
        # Two of the three roots count, and "0" is one of two branches below its first turn: 3 * (1/4, 1/4, 1/2).
        ("token_mean", "branch", [0.75, 0.75, 1.5]),
    ],
)
def test_leaf_weights(question, loss_aggregation, leaf_weighting, expected):
    connector = LeafWeights(loss_aggregation=loss_aggregation, leaf_weighting=leaf_weighting, max_response_tokens=8)

    batch = call(connector, **{TREES: [question], LAYOUTS: [LAYOUT]})

    np.testing.assert_allclose(batch[LEAF_WEIGHTS], [expected])


@pytest.mark.parametrize(
    ("attribution", "a_pos", "a_neg"),
    [
        ("soft", [0.5, 0.5, 0.0, 3.0], [-2.0, 0.0, -2.0, 0.0]),
        # The shared first turn: mean of 1 and -2, times W = 1.5.
        ("hard", [0.0, 0.5, 0.0, 3.0], [-0.75, 0.0, -2.0, 0.0]),
    ],
)
def test_attribution(attribution, a_pos, a_neg):
    columns = {
        LAYOUTS: [LAYOUT],
        LEAF_ADVANTAGES: [np.array([1.0, -2.0, 3.0])],
        LEAF_WEIGHTS: [np.array([0.5, 1.0, 1.0])],
    }

    [result] = call(Attribution(attribution=attribution), **columns)[NODE_ATTRIBUTIONS]

    np.testing.assert_allclose(result.a_pos, a_pos)
    np.testing.assert_allclose(result.a_neg, a_neg)
    np.testing.assert_allclose(result.weight, [1.5, 0.5, 1.0, 1.0])


def test_depth_first_packing(question):
    attribution = NodeAttribution(
        a_pos=np.array([1.0, 2.0, 3.0, 4.0]), a_neg=np.array([-1.0, -2.0, -3.0, -4.0]), weight=np.full(4, 0.5)
    )
    columns = {TREES: [question], LAYOUTS: [LAYOUT], NODE_ATTRIBUTIONS: [attribution]}

    [packed] = call(DepthFirstPacking(), **columns)[PACKED_TREES]

    assert packed.token_ids.tolist() == [1, 2, 10, 11, 90, 12, 13, 14, 15, 20]
    assert packed.parent.tolist() == [-1, 0, 1, 2, 3, 4, 4, 6, 7, 1]
    assert packed.end.tolist() == [10, 10, 9, 9, 9, 6, 9, 9, 9, 10]
    assert packed.position_ids.tolist() == [0, 1, 2, 3, 4, 5, 5, 6, 7, 2]
    assert packed.loss_mask.tolist() == [False, False, True, True, False, True, True, True, True, True]
    assert packed.a_pos.tolist() == [0, 0, 1, 1, 0, 2, 3, 3, 3, 4]
    assert packed.a_neg.tolist() == [0, 0, -1, -1, 0, -2, -3, -3, -3, -4]
    assert packed.weight.tolist() == [0, 0, 0.5, 0.5, 0, 0.5, 0.5, 0.5, 0.5, 0.5]
    assert packed.behavior_log_probs.tolist() == [0, 0, -0.5, -0.5, 0, -1, -2, -2, -2, -1]
    assert packed.behavior_entropies.tolist() == [0] * 10
    [with_entropies] = call(DepthFirstPacking(with_entropies=True), **columns)[PACKED_TREES]
    assert with_entropies.behavior_entropies.tolist() == [0, 0, 1, 1, 0, 1, 1, 1, 1, 1]


def pipeline(**overrides) -> LearnerConnectorPipeline:
    values = {
        "overlong_buffer_tokens": None,
        "max_response_tokens": 8,
        "baseline": "group",
        "returns": "total",
        "normalize_std": True,
        "loss_aggregation": "token_mean",
        "leaf_weighting": "uniform",
        "attribution": "soft",
        "with_entropies": False,
    }
    return build_learner_pipeline(PipelineSettings(**values | overrides))


def test_the_pipeline_of_arpo():
    assert [type(piece) for piece in pipeline().connectors] == [
        EpisodesToTrees,
        GroupAdvantage,
        LeafWeights,
        Attribution,
        DepthFirstPacking,
    ]


def test_the_pipelines_of_dapo_and_reinforce_plus_plus():
    dapo = pipeline(overlong_buffer_tokens=4)
    assert [type(piece) for piece in dapo.connectors][:3] == [EpisodesToTrees, OverlongPenalty, GroupAdvantage]
    assert type(pipeline(baseline="batch").connectors[1]) is BatchAdvantage
    assert type(pipeline(baseline="batch", returns="to_go").connectors[2]) is RewardsToGo


def test_the_pipelines_of_tree_grpo_and_aepo():
    assert type(pipeline(baseline="tree").connectors[1]) is TreeAdvantage
    assert [pipeline(with_entropies=it).connectors[-1].with_entropies for it in (False, True)] == [False, True]
    aepo = ARPOConfig().training(entropy_advantage_coeff=0.2)
    assert [PipelineSettings.from_config(c).with_entropies for c in (ARPOConfig(), aepo)] == [False, True]


def test_the_pipeline_from_episodes_to_packed_trees(question):
    [packed] = pipeline()(rl_module=None, episodes=[tree_to_episode(question)])[PACKED_TREES]

    good, bad = 0.577349, -1.154699
    np.testing.assert_allclose(packed.a_pos, [0, 0, good, good, 0, good, 0, 0, 0, good], atol=1e-6)
    np.testing.assert_allclose(packed.a_neg, [0, 0, bad, bad, 0, 0, bad, bad, bad, 0], atol=1e-6)
    np.testing.assert_array_equal(packed.weight, [0, 0, 2, 2, 0, 1, 1, 1, 1, 1])


def test_rewards_to_go():
    """Of two roots with the same return, one is paid at its first turn and the other at its second."""
    early = make_trajectory("0", [*paid([make_turn([2], [3])], 1.0), make_turn([4])])
    late = make_trajectory("1", [make_turn([5], [3]), make_turn([6])], reward=1.0)
    episode = tree_to_episode(make_tree([1], [early, late]))
    [packed] = pipeline(returns="to_go")(rl_module=None, episodes=[episode])[PACKED_TREES]
    # At the first turns both have all before them; at the second one has earned 1 and the other will.
    np.testing.assert_allclose(packed.a_pos + packed.a_neg, [0, 0, 0, -0.5, 0, 0, 0.5], atol=1e-9)
    [total] = pipeline()(rl_module=None, episodes=[episode])[PACKED_TREES]
    assert not np.any(total.a_pos) and not np.any(total.a_neg)


def test_a_pipeline_without_episodes():
    """A learner whose shard is empty runs it too."""
    assert pipeline()(rl_module=None, episodes=[])[PACKED_TREES] == []


def test_layout_of_the_fixture(question):
    assert depth_first_layout(question) == LAYOUT


def test_the_settings_of_a_piece():
    piece = LeafWeights(loss_aggregation="constant", leaf_weighting="uniform", max_response_tokens=8)
    arguments = {"loss_aggregation": "constant", "leaf_weighting": "uniform", "max_response_tokens": 8}
    spaces = {"input_observation_space": None, "input_action_space": None}
    assert piece.get_ctor_args_and_kwargs() == ((), spaces | arguments)
    assert GroupAdvantage().normalize_std is True
    with pytest.raises(
        TypeError, match=r"^LeafWeights needs the settings \['leaf_weighting', 'max_response_tokens'\]\.$"
    ):
        LeafWeights(loss_aggregation="constant")
    with pytest.raises(TypeError, match=r"^GroupAdvantage does not have the settings \['normalise'\]\.$"):
        GroupAdvantage(normalise=False)
