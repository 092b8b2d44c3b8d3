"""Plots the forks of each iteration, and after how many turns they begin."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure
from ray.air.constants import TRAINING_ITERATION
from ray.rllib.utils.metrics import ENV_RUNNER_RESULTS

from rllib_arpo.core.results import number_at
from rllib_arpo.plots.run_data import MissingDataError, RunData
from rllib_arpo.plots.style import COLORS, count_axis, legend, panels


@dataclass(frozen=True, slots=True)
class IterationForks:
    """The forks of an iteration.

    Attributes:
        per_question: forked trajectories.
        turns: the mean of the turns above a fork, and their quantiles 0.1 and 0.9; None without a fork.
    """

    iteration: int
    per_question: float
    turns: tuple[float, float, float] | None


def fork_history(run: RunData) -> list[IterationForks]:
    """Raises:
    MissingDataError: no iteration has a fork.
    """
    names = ("forks_per_question", "fork_depth_mean", "fork_depth_p10", "fork_depth_p90")
    found = []
    for result in run.results:
        count, mean, low, high = (number_at(result, ENV_RUNNER_RESULTS, name) for name in names)
        if count is not None:
            turns = None if not count or mean is None or low is None or high is None else (mean, low, high)
            found.append(IterationForks(result[TRAINING_ITERATION], count, turns))
    if not any(forks.per_question for forks in found):
        raise MissingDataError("No iteration has a fork.")
    return found


def draw_fork_history(run: RunData) -> Figure:
    history = fork_history(run)
    figure, (count, depth) = panels(2, sharex=True)
    color = COLORS["training"]
    count.plot([f.iteration for f in history], [f.per_question for f in history], marker=".", color=color)
    count.set(ylabel="forks per question", ylim=(0, None))
    iterations, mean, low, high = np.array([(f.iteration, *f.turns) for f in history if f.turns is not None]).T
    depth.plot(iterations, mean, marker=".", color=color, label="mean")
    depth.fill_between(iterations, low, high, color=color, alpha=0.18, linewidth=0, label="80 % of the forks")
    depth.set(ylabel="turns before the fork", ylim=(0, None))
    legend(depth)
    for panel in (count, depth):
        count_axis(panel, "iteration")
    return figure
