"""Forks by iteration, by hand."""

from __future__ import annotations

import numpy as np
import pytest

from rllib_arpo.plots.fork_history import IterationForks, draw_fork_history, fork_history
from rllib_arpo.plots.run_data import MissingDataError
from tests.plots.runs import run_data


def forked(iteration: int, count: float, mean: float, low: float, high: float) -> dict:
    depths = {"fork_depth_mean": mean, "fork_depth_p10": low, "fork_depth_p90": high}
    return {"training_iteration": iteration, "env_runners": {"forks_per_question": count} | depths}


NAN = float("nan")
#: RLlib reports NaN where an iteration has no fork and an earlier one had some.
RUN = run_data(results=[forked(1, 4.0, 3.5, 1.0, 6.0), forked(2, 0.0, NAN, NAN, NAN), forked(3, 1.0, 2.0, 2.0, 2.0)])


def test_the_history():
    assert fork_history(RUN) == [
        IterationForks(1, 4.0, (3.5, 1.0, 6.0)),
        IterationForks(2, 0.0, None),
        IterationForks(3, 1.0, (2.0, 2.0, 2.0)),
    ]


def test_the_figure():
    count, depth = draw_fork_history(RUN).axes
    np.testing.assert_array_equal(count.lines[0].get_xydata(), [[1, 4], [2, 0], [3, 1]])
    np.testing.assert_array_equal(depth.lines[0].get_xydata(), [[1, 3.5], [3, 2]])
    assert (count.get_ylabel(), depth.get_ylabel(), depth.get_xlabel()) == (
        "forks per question", "turns before the fork", "iteration",
    )  # fmt: skip


def test_a_run_without_forks():
    with pytest.raises(MissingDataError) as error:
        draw_fork_history(run_data(results=[forked(1, 0.0, NAN, NAN, NAN)]))
    assert str(error.value) == "No iteration has a fork."
