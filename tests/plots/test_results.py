"""The plots of Tune's results alone: the engine-learner gap, and the seconds of an iteration."""

from __future__ import annotations

import numpy as np
import pytest

from rllib_arpo.plots.gap import draw_gap
from rllib_arpo.plots.run_data import MissingDataError
from rllib_arpo.plots.seconds import draw_seconds, seconds_of
from tests.plots.runs import run_data


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
    found = seconds_of(run_data(results=TIMED))
    assert found.iterations.tolist() == [1, 2]
    assert {name: values.tolist() for name, values in found.parts.items()} == {
        "rollout": [4.0, 5.0],
        "update": [3.0, 4.0],
        "weights to the engines": [0.5, 1.0],
        "evaluation and the rest": [2.5, 10.0],
    }
    (panel,) = draw_seconds(run_data(results=TIMED)).axes
    tops = [bar.get_y() + bar.get_height() for bar in panel.patches]
    np.testing.assert_allclose(tops, [4, 5, 7, 9, 7.5, 10, 10, 20])
    assert (panel.get_xlabel(), panel.get_ylabel()) == ("iteration", "seconds")


@pytest.mark.parametrize(
    ("draw", "sentence"),
    [
        (draw_gap, "No result of the run has the metric engine_logprob_gap."),
        (draw_seconds, "No result of the run has the seconds of its iteration."),
    ],
)
def test_a_run_without(draw, sentence):
    with pytest.raises(MissingDataError) as error:
        draw(run_data())
    assert str(error.value) == sentence
