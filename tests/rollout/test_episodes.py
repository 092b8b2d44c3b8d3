"""Trees survive the way through RLlib's `MultiAgentEpisode`."""

import numpy as np
import pytest

from rllib_arpo.core.tree import QuestionTree, StopReason, ToolCall, ToolStatus, Trajectory, Turn, TurnTimes
from rllib_arpo.rollout.episodes import episode_to_tree, path_token_ids, tree_to_episode
from tests.helpers.trees import random_tree


def turn(tokens, observation=(), tool=False, reward=0.0) -> Turn:
    n = len(tokens)
    return Turn(
        np.array(tokens, np.int32),
        -np.arange(1, n + 1, dtype=np.float32),
        np.ones(min(n, 2), np.float32),
        np.array(observation, np.int32),
        np.arange(3, 3 + n, dtype=np.int32),
        tool_call=ToolCall("python", ToolStatus.OK, 0.5, "print(1)") if tool else None,
        times=TurnTimes(0.5, 1.0, 2.5),
        reward=reward,
    )


FORKED = QuestionTree(
    "q",
    np.array([1, 2], np.int32),
    (
        Trajectory("0", (turn([3], [4], tool=True, reward=0.5), turn([5], reward=1.0)), StopReason.ANSWER, 1.0, True),
        Trajectory("1", (turn([6, 7], reward=-1.0),), StopReason.MALFORMED_CALL),
        Trajectory("0.0", (turn([8, 9], reward=1.0),), StopReason.ANSWER, 0.0, True, parent="0", num_inherited_turns=1),
        Trajectory("2", (), StopReason.TIME_LIMIT, topped_up=True),
    ),
)

#: The deadline has cut off the second turn of the root and the first of its fork.
CUT_OFF = QuestionTree(
    "q",
    np.array([1, 2], np.int32),
    (
        Trajectory("0", (turn([3], [4], tool=True),), StopReason.DEADLINE),
        Trajectory("0.0", (), StopReason.DEADLINE, parent="0", num_inherited_turns=1),
    ),
)


def assert_same(a: QuestionTree, b: QuestionTree) -> None:
    assert (a.question_id, a.prompt.tolist()) == (b.question_id, b.prompt.tolist())
    mine, other = a.by_id(), b.by_id()
    assert mine.keys() == other.keys()
    for agent, trajectory in mine.items():
        copy = other[agent]
        for name in ("stop_reason", "accuracy", "format_valid", "parent", "num_inherited_turns", "topped_up"):
            assert getattr(copy, name) == getattr(trajectory, name), (agent, name)
        assert len(copy.turns) == len(trajectory.turns)
        for one, two in zip(trajectory.turns, copy.turns, strict=True):
            for name in ("token_ids", "log_probs", "entropies", "observation", "weight_versions"):
                assert getattr(one, name).tolist() == getattr(two, name).tolist(), (agent, name)
            assert (one.new_context, one.tool_call, one.decision, one.times, one.reward) == (
                two.new_context,
                two.tool_call,
                two.decision,
                two.times,
                two.reward,
            )


@pytest.mark.parametrize("tree", [FORKED, CUT_OFF])
def test_round_trip(tree):
    assert_same(tree, episode_to_tree(tree_to_episode(tree)))


@pytest.mark.parametrize("seed", range(25))
def test_round_trip_of_random_trees(seed):
    shape = {"vocab_size": 50, "paid_turn_probability": 0.5, "new_context_probability": 0.3}
    tree = random_tree(np.random.default_rng(seed), **shape)
    assert_same(tree, episode_to_tree(tree_to_episode(tree)))


def test_one_agent_per_trajectory_and_one_step_per_turn():
    episode = tree_to_episode(FORKED)
    assert episode.id_ == "q"
    assert set(episode.agent_episodes) == {"0", "1", "0.0", "2"}
    assert {agent: len(e) for agent, e in episode.agent_episodes.items()} == {"0": 2, "1": 1, "0.0": 1, "2": 0}
    assert episode.env_t == 2
    assert episode.is_done


def test_first_observation_of_a_fork_is_its_whole_prefix():
    fork = tree_to_episode(FORKED).agent_episodes["0.0"]
    assert fork.observations[0].tolist() == [1, 2, 3, 4]
    assert (fork.infos[0]["parent"], fork.infos[0]["inherited_turns"]) == ("0", 1)
    assert fork.actions[0].tolist() == [8, 9]


def test_path_token_ids():
    assert path_token_ids(FORKED, "0.0").tolist() == [1, 2, 3, 4, 8, 9]
    assert path_token_ids(FORKED, "0", own_turns=1).tolist() == [1, 2, 3, 4]
