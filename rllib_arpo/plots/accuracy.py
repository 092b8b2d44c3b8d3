"""Accuracy and reward against iterations, and accuracy against the tool calls that training has executed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow.compute as pc
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from ray.air.constants import TRAINING_ITERATION
from ray.rllib.utils.metrics import ENV_RUNNER_RESULTS, EPISODE_RETURN_MEAN, EVALUATION_RESULTS

from rllib_arpo.core.results import number_at
from rllib_arpo.plots.run_data import EVALUATION, TRAINING, MissingDataError, RunData
from rllib_arpo.plots.style import COLORS, count_axis, legend, panels
from rllib_arpo.tracking.iteration_log import TOOL_CALLS_LIFETIME

LABELS = {TRAINING: "training, as sampled", EVALUATION: "evaluation, held out"}


@dataclass(frozen=True, slots=True)
class Point:
    """The outcome at an iteration.

    Attributes:
        tool_calls: executed in training up to then.
        accuracy, reward: means per trajectory.
    """

    iteration: int
    tool_calls: float | None
    accuracy: float | None
    reward: float | None


def learning_curves(run: RunData) -> dict[str, list[Point]]:
    """`TRAINING` and `EVALUATION` -> their points; an evaluation before the first iteration is at iteration 0.

    Raises:
        MissingDataError: no result has an accuracy.
    """
    curves = {TRAINING: _points(run, ()), EVALUATION: [*_before_training(run), *_points(run, (EVALUATION_RESULTS,))]}
    if not any(curves.values()):
        raise MissingDataError("No result of the run has an accuracy or a reward.")
    return {name: points for name, points in curves.items() if points}


def draw_progress(run: RunData) -> Figure:
    curves = learning_curves(run)
    figure, (accuracy, reward) = panels(2)
    for name, points in curves.items():
        iterations = [point.iteration for point in points]
        _draw(accuracy, iterations, [point.accuracy for point in points], name)
        _draw(reward, iterations, [point.reward for point in points], name)
    accuracy.set(ylabel="accuracy", ylim=(-0.02, 1.02))
    reward.set(ylabel="mean reward")
    for panel in (accuracy, reward):
        count_axis(panel, "iteration")
    legend(accuracy)
    return figure


def draw_accuracy_by_calls(run: RunData) -> Figure:
    curves = {
        name: [point for point in points if point.tool_calls is not None]
        for name, points in learning_curves(run).items()
    }
    if not any(point.tool_calls for points in curves.values() for point in points):
        raise MissingDataError("The run has executed no tool call.")
    figure, (panel,) = panels(1)
    for name, points in curves.items():
        _draw(panel, [point.tool_calls for point in points], [point.accuracy for point in points], name)
    panel.set(xlabel="tool calls executed in training", ylabel="accuracy", ylim=(-0.02, 1.02))
    legend(panel)
    return figure


def _points(run: RunData, below: tuple[str, ...]) -> list[Point]:
    points = []
    for result in run.results:
        accuracy, reward = (
            number_at(result, *below, ENV_RUNNER_RESULTS, name) for name in ("accuracy", EPISODE_RETURN_MEAN)
        )
        if accuracy is not None or reward is not None:
            calls = number_at(result, ENV_RUNNER_RESULTS, TOOL_CALLS_LIFETIME)
            points.append(Point(result[TRAINING_ITERATION], calls, accuracy, reward))
    return points


def _before_training(run: RunData) -> list[Point]:
    """The recorded evaluation before the first iteration, which no result has."""
    rows = run.rows(EVALUATION)
    rows = rows.filter(pc.equal(rows["iteration"], 0))
    if not rows.num_rows:
        return []
    leaves = rows.group_by(["question_id", "agent_id"]).aggregate([("accuracy", "min"), ("reward", "min")])
    accuracy, reward = (pc.mean(leaves[f"{name}_min"]).as_py() for name in ("accuracy", "reward"))
    return [Point(0, 0.0, accuracy, reward)]


def _draw(panel: Axes, x: Sequence[float | None], y: Sequence[float | None], name: str) -> None:
    pairs = [(a, b) for a, b in zip(x, y, strict=True) if a is not None and b is not None]
    marker = "o" if name == EVALUATION else "."
    panel.plot(*zip(*pairs, strict=True), color=COLORS[name], marker=marker, markersize=5, label=LABELS[name])
