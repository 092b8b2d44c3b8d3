"""The metrics of two small questions, all by hand."""

from dataclasses import replace

import numpy as np
import pytest

from rllib_arpo.core.figures import examined_nodes, has_signal, initial_entropies
from rllib_arpo.core.rollout_history import EarlierQuestion
from rllib_arpo.core.tree import ForkDecision, QuestionTree, StopReason, ToolCall, ToolStatus, Trajectory, Turn
from rllib_arpo.rollout.episodes import TreeEpisode
from rllib_arpo.rollout.messages import QuestionRef, SampledQuestion
from rllib_arpo.rollout.metric_table import rollout_metrics
from tests.helpers.trees import make_trajectory, make_tree, make_turn

#: k. The entropies beyond it are recorded and not looked at.
WINDOW = 2


SEARCH = ToolCall("search", ToolStatus.OK, 0.1)
PYTHON = ToolCall("python", ToolStatus.TIMEOUT, 2.0)
RESPONSES = {SEARCH: [50], PYTHON: [60]}


def turn(num_tokens: int, tool: ToolCall | None = None, entropies=(), decision=None, reward=0.0) -> Turn:
    response = RESPONSES.get(tool, ())
    beside = {"tool_call": tool, "decision": decision, "reward": reward}
    return make_turn([0] * num_tokens, response, entropies=np.float32(entropies), **beside)


FORKED = QuestionTree(
    "a",
    np.zeros(5, np.int32),
    (
        Trajectory(
            "0",
            (
                turn(3, SEARCH, [0.5, 1.5, 9.0]),
                turn(4, None, [2.0, 3.0, 9.0], ForkDecision(0.6, 0.25, 0.55, True, 1), 1.1),
            ),
            StopReason.ANSWER,
            1.0,
            True,
        ),
        Trajectory(
            "0.0",
            (turn(2, PYTHON, [7.0]), turn(6, None, [4.0], ForkDecision(0.9, -0.5, 0.4, True, 0))),
            StopReason.ANSWER,
            0.0,
            True,
            "0",
            1,
        ),
        Trajectory("1", (turn(1, reward=-1.0),), StopReason.MALFORMED_CALL, topped_up=True),
    ),
)
MASKED = QuestionTree(
    "b",
    np.zeros(5, np.int32),
    (
        Trajectory(
            "0",
            (
                turn(1, SEARCH, [3.0]),
                turn(1, SEARCH, [1.0], ForkDecision(0.2, -0.75)),
                turn(2, None, [0.5], ForkDecision(0.1, -0.25), -1.0),
            ),
            StopReason.NO_ANSWER,
        ),
        Trajectory("1", (), StopReason.DEADLINE),
    ),
)


def asked(tree: QuestionTree, **beside) -> SampledQuestion:
    return SampledQuestion(QuestionRef(0), TreeEpisode(tree), WINDOW, **beside)


#: By hand: means over trajectories and questions; what is shared counts once.
EXPECTED = {
    "episode_return_mean": (1.1 + 0.0 - 1.0 - 1.0 + 0.0) / 5,
    "accuracy": 1 / 5,
    "format_valid": 2 / 5,
    "generated_tokens_per_trajectory": (7 + 11 + 1 + 4 + 0) / 5,
    "tool_calls_per_trajectory": (1 + 2 + 0 + 2 + 0) / 5,
    "pass_at_k": 0.5,
    "tool_calls_executed": 4,
    "generated_tokens": 3 + 4 + 2 + 6 + 1 + 4,
    "tokens_per_second": (3 + 4 + 2 + 6 + 1 + 4) / 10,
    "forks_per_question": 0.5,
    "fork_events_per_question": 0.5,
    "fork_rate": 0.5,
    "topped_up_per_question": 0.5,
    "initial_rollouts_per_question": 1.5,
    "prefix_tokens_reused": 7,
    # One fork, below the first turn.
    "fork_depth_mean": 1.0,
    "fork_depth_p10": 1.0,
    "fork_depth_p90": 1.0,
    # "0.0" begins where the entropy was high: its node is left out.
    "entropy/initial": (1.0 + 3.0) / 2,
    "entropy/after_tool": (2.5 + 1.0 + 0.5) / 3,
    # dH: 0.25, -0.75, -0.25.
    "entropy/delta": -0.25,
    "entropy/delta_p50": -0.25,
    "entropy/delta_p10": -0.65,
    "entropy/delta_p90": 0.15,
    "entropy/rise_share": 1 / 3,
    "tools/search/entropy_rise_share": 1 / 3,
    "tools/search/errors": 0,
    "tools/search/latency_p50": 0.1,
    "tools/python/calls": 1,
    "tools/python/timeouts": 1,
    "stop/answer": 0.4,
    "stop/malformed_call": 0.2,
    "stop/no_answer": 0.2,
    "stop/deadline": 0.2,
}


def test_the_metrics_of_two_questions():
    metrics = rollout_metrics([asked(FORKED, prefix_tokens_reused=7), asked(MASKED)], seconds=10.0)
    assert {name: metrics[name] for name in EXPECTED} == pytest.approx(EXPECTED)
    # The only node after python is off policy.
    assert {"tools/python/entropy_delta", "tools/python/latency_p50"} & metrics.keys() == {"tools/python/latency_p50"}
    partly = replace(FORKED, trajectories=tuple(replace(t, accuracy=0.8 * t.accuracy) for t in FORKED.trajectories))
    assert rollout_metrics([asked(partly)], seconds=1.0)["pass_at_k"] == 0.0


def test_forks_count_though_their_parent_is_cut_off_in_the_turn_that_decided_them():
    """The decision is lost with the turn; two children begin below the first turn, one of them forks below its next."""
    turns = {"0": [10], "0.0": [20, 21], "0.1": [30], "0.0.0": [22]}
    begins = {"0": 0, "0.0": 1, "0.1": 1, "0.0.0": 2}
    trajectories = [
        make_trajectory(agent, [make_turn([token]) for token in turns[agent]], num_inherited_turns=begins[agent])
        for agent in turns
    ]
    cut_off = replace(trajectories[0], stop_reason=StopReason.DEADLINE)
    metrics = rollout_metrics([asked(make_tree([1], [cut_off, *trajectories[1:]]))], seconds=1.0)
    assert (metrics["forks_per_question"], metrics["fork_events_per_question"]) == (3.0, 2.0)
    assert metrics["fork_depth_mean"] == pytest.approx(4 / 3)


def test_a_mean_over_nothing_is_no_metric():
    """Where no tool was called nothing rose, and nothing was decided."""
    plain = QuestionTree("c", np.zeros(5, np.int32), (Trajectory("0", (turn(3),), StopReason.ANSWER),))
    metrics = rollout_metrics([asked(plain)], seconds=1.0)
    assert {name for name in metrics if name.startswith(("entropy/", "fork_rate", "fork_depth", "tools/"))} == set()
    assert (metrics["forks_per_question"], metrics["tool_calls_per_trajectory"]) == (0.0, 0.0)
    greedy = rollout_metrics([asked(MASKED)], seconds=1.0)
    assert greedy["entropy/delta"] == pytest.approx(-0.5)
    assert "fork_rate" not in greedy and "fork_depth_mean" not in greedy


def test_without_a_window_recorded_entropies_say_nothing():
    assert (initial_entropies(FORKED, 0), examined_nodes(FORKED, 0)) == ([], [])


def test_levels_of_a_question_by_tool_are_nats_per_token():
    """However many tokens the windows have: two after the first question's search, one after each of the other's."""
    assert [node.response.tolist() for node in examined_nodes(FORKED, WINDOW)] == [[50], [60]]
    assert EarlierQuestion.of(FORKED, WINDOW).levels == {"search": [2.5]}
    assert EarlierQuestion.of(MASKED, WINDOW).levels == {"search": [1.0, 0.5]}


def test_a_group_has_signal_if_counted_rewards_differ():
    assert has_signal(FORKED)
    assert not has_signal(MASKED)
