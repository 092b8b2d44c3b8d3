"""The metrics of two small questions, all by hand."""

from __future__ import annotations

import numpy as np
import pytest

from rllib_arpo.core.tree import QuestionTree, StopReason, ToolCall, ToolStatus, Trajectory, Turn
from rllib_arpo.rollout.metrics import nested, question_stats, rollout_metrics
from rllib_arpo.rollout.tree_sampler import BranchingCounts


def turn(num_tokens: int, tool: ToolCall | None = None) -> Turn:
    tokens, nothing = np.zeros(num_tokens, np.int32), np.zeros(0, np.int32)
    return Turn(tokens, tokens.astype(np.float32), nothing.astype(np.float32), nothing, tokens, tool)


SEARCH = ToolCall("search", ToolStatus.OK, 0.1)
PYTHON = ToolCall("python", ToolStatus.TIMEOUT, 2.0)

FORKED = QuestionTree(
    "a",
    np.zeros(5, np.int32),
    (
        Trajectory("0", (turn(3, SEARCH), turn(4)), StopReason.ANSWER, 1.1, 1.0, True),
        Trajectory("0.0", (turn(2, PYTHON), turn(6)), StopReason.ANSWER, 0.0, 0.0, True, "0", 1),
        Trajectory("1", (turn(1),), StopReason.MALFORMED_CALL, -1.0, topped_up=True),
    ),
)
MASKED = QuestionTree(
    "b",
    np.zeros(5, np.int32),
    (
        Trajectory("0", (turn(4),), StopReason.NO_ANSWER, -1.0),
        Trajectory("1", (), StopReason.DEADLINE),
    ),
)


@pytest.fixture
def metrics():
    counts = BranchingCounts(2, 1, [1.0, 3.0], [2.5], [0.25], prefix_tokens_reused=7)
    return rollout_metrics([question_stats(FORKED, counts), question_stats(MASKED, BranchingCounts())], seconds=10.0)


def test_means_are_over_trajectories(metrics):
    assert metrics["episode_return_mean"] == pytest.approx((1.1 + 0.0 - 1.0 - 1.0 + 0.0) / 5)
    assert metrics["accuracy"] == pytest.approx(1 / 5)
    assert metrics["format_valid"] == pytest.approx(2 / 5)
    assert metrics["response_tokens_mean"] == pytest.approx((7 + 11 + 1 + 4 + 0) / 5)
    assert metrics["tool_calls_per_trajectory"] == pytest.approx((1 + 2 + 0 + 0 + 0) / 5)


def test_pass_at_k_is_over_questions(metrics):
    assert metrics["pass_at_k"] == 0.5


def test_shared_calls_and_tokens_count_once(metrics):
    assert metrics["tool_calls_executed"] == 2
    assert metrics["tokens_per_second"] == pytest.approx((3 + 4 + 2 + 6 + 1 + 4) / 10)


def test_branching(metrics):
    assert metrics["forks_per_question"] == 0.5
    assert metrics["fork_events_per_question"] == 0.5
    assert metrics["fork_rate"] == 0.5
    assert metrics["topped_up_per_question"] == 0.5
    assert metrics["prefix_tokens_reused"] == 7
    assert (metrics["entropy/initial"], metrics["entropy/after_tool"], metrics["entropy/delta"]) == (2.0, 2.5, 0.25)


def test_tools_and_stops(metrics):
    assert metrics["tools/python/calls"] == metrics["tools/python/timeouts"] == 1
    assert metrics["tools/search/errors"] == 0
    assert metrics["tools/search/latency_p50"] == pytest.approx(0.1)
    assert metrics["stop/answer"] == pytest.approx(0.4)
    assert sum(metrics[f"stop/{reason}"] for reason in StopReason) == pytest.approx(1.0)


def test_a_group_has_signal_if_counted_rewards_differ():
    assert question_stats(FORKED, BranchingCounts()).has_signal
    assert not question_stats(MASKED, BranchingCounts()).has_signal


def test_nested():
    assert nested({"a/b": 1, "a/c": 2, "d": 3}) == {"a": {"b": 1, "c": 2}, "d": 3}
