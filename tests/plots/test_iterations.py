"""The plots of Tune's results alone, by hand."""

import numpy as np

from rllib_arpo.plots.iterations import draw_fork_history, draw_gap, draw_seconds, seconds_of
from tests.plots.runs import run_data


def forked(iteration: int, count: float, mean: float, low: float, high: float) -> dict:
    depths = {"fork_depth_mean": mean, "fork_depth_p10": low, "fork_depth_p90": high}
    return {"training_iteration": iteration, "env_runners": {"forks_per_question": count} | depths}


def test_the_forks():
    """RLlib reports NaN where an iteration has no fork and an earlier one had some."""
    nan = float("nan")
    results = [forked(1, 4.0, 3.5, 1.0, 6.0), forked(2, 0.0, nan, nan, nan), forked(3, 1.0, 2.0, 2.0, 2.0)]
    count, depth = draw_fork_history(run_data(results=results)).axes
    np.testing.assert_array_equal(count.lines[0].get_xydata(), [[1, 4], [2, 0], [3, 1]])
    np.testing.assert_array_equal(depth.lines[0].get_xydata(), [[1, 3.5], [3, 2]])
    (between,) = depth.collections
    assert {tuple(point) for point in between.get_paths()[0].vertices} == {(1, 1), (1, 6), (3, 2)}
    assert (count.get_ylabel(), depth.get_ylabel(), depth.get_xlabel()) == (
        "forks per question", "turns before the fork", "iteration",
    )  # fmt: skip


def with_gap(iteration: int, gap: float, **guards) -> dict:
    return {
        "training_iteration": iteration,
        "learners": {"default_policy": {"engine_logprob_gap": gap}},
        "config": {"guards": guards},
    }


def test_the_gap():
    run = run_data(results=[with_gap(1, 0.01), with_gap(2, float("nan")), with_gap(3, 0.001)])
    (panel,) = draw_gap(run).axes
    gap, limit = panel.lines
    assert gap.get_xydata().tolist() == [[1, 0.01], [3, 0.001]]
    assert set(limit.get_ydata()) == {0.1}
    (panel_of_own_guard,) = draw_gap(run_data(results=[with_gap(1, 0.01, engine_logprob_gap=0.5)])).axes
    assert set(panel_of_own_guard.lines[1].get_ydata()) == {0.5}
    (panel_without,) = draw_gap(run_data(results=[with_gap(1, 0.01, engine_logprob_gap=None)])).axes
    assert len(panel_without.lines) == 1
    assert (panel.get_yscale(), panel.get_ylabel()) == ("log", "log-probs of sampled tokens (nats)")


def test_an_engine_that_agrees_exactly_has_a_linear_axis():
    (panel,) = draw_gap(run_data(results=[with_gap(1, 0.0)])).axes
    assert panel.get_yscale() == "linear"


TIMED = [
    {"training_iteration": 1, "time_this_iter_s": 10.0, "timers": {"rollout": 4.0, "update": 3.0, "sync": 0.5}},
    {"training_iteration": 2, "time_this_iter_s": 20.0, "timers": {"rollout": 5.0, "update": 4.0, "sync": 1.0}},
]


def test_the_seconds():
    iterations, parts = seconds_of(run_data(results=TIMED))
    assert iterations == [1, 2]
    assert {name: values.tolist() for name, values in parts.items()} == {
        "rollout": [4.0, 5.0],
        "update": [3.0, 4.0],
        "weights to the engines": [0.5, 1.0],
        "evaluation and the rest": [2.5, 10.0],
    }
    (panel,) = draw_seconds(run_data(results=TIMED)).axes
    tops = [bar.get_y() + bar.get_height() for bar in panel.patches]
    np.testing.assert_allclose(tops, [4, 5, 7, 9, 7.5, 10, 10, 20])
    assert (panel.get_xlabel(), panel.get_ylabel()) == ("iteration", "seconds")
