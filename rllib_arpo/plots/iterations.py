"""The plot of Tune's results: accuracy, reward and tool calls by iteration."""

from collections.abc import Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from ray.rllib.utils.metrics import ENV_RUNNER_RESULTS, EPISODE_RETURN_MEAN, EVALUATION_RESULTS

from rllib_arpo.plots.run_data import EVALUATION, TRAINING, MissingDataError, RunData
from rllib_arpo.plots.style import COLORS, count_axis, legend, panels

LABELS = {TRAINING: "training, as sampled", EVALUATION: "evaluation, held out"}
#: Label -> the metric below `env_runners`, a mean over trajectories, and the column of the record.
MEASURES = {"accuracy": ("accuracy", "accuracy"), "mean reward": (EPISODE_RETURN_MEAN, "reward")}


def learning_curves(run: RunData, measure: str) -> dict[str, tuple[list[int], list[float]]]:
    """`TRAINING` and `EVALUATION` -> iterations and values. An evaluation before training has iteration 0."""
    metric, column = MEASURES[measure]
    iterations, values = run.series(EVALUATION_RESULTS, ENV_RUNNER_RESULTS, metric)
    if (before := _before_training(run, column)) is not None:
        iterations, values = [0, *iterations], [before, *values]
    return {TRAINING: run.series(ENV_RUNNER_RESULTS, metric), EVALUATION: (iterations, values)}


def draw_progress(run: RunData) -> Figure:
    """Draws accuracy and reward of training and evaluation, and the tool calls that training executed.

    Raises:
        MissingDataError: no result has an accuracy or a reward.
    """
    by_measure = {measure: learning_curves(run, measure) for measure in MEASURES}
    if not any(values for curves in by_measure.values() for _, values in curves.values()):
        raise MissingDataError("No result of the run has an accuracy or a reward.")
    figure, axes = panels(3)
    for panel, (measure, curves) in zip(axes, by_measure.items(), strict=False):
        for name, curve in curves.items():
            _draw(panel, *curve, name)
        panel.set_ylabel(measure)
    _draw(axes[2], *run.series(ENV_RUNNER_RESULTS, "tool_calls_executed"), TRAINING)
    axes[2].set_ylabel("tool calls executed")
    axes[2].set_ylim(bottom=0)
    for panel in axes:
        count_axis(panel, "iteration")
    axes[0].set_ylim(-0.02, 1.02)
    legend(axes[0])
    return figure


def _before_training(run: RunData, column: str) -> float | None:
    """The mean over trajectories in the recorded evaluation before training, which is in no result."""
    rows = run.rows(EVALUATION)
    leaves = rows[rows["iteration"] == 0].drop_duplicates(["question_id", "agent_id"])
    return float(leaves[column].mean()) if len(leaves) else None


def _draw(panel: Axes, x: Sequence[float], y: Sequence[float], name: str) -> None:
    if x:
        marker = "o" if name == EVALUATION else "."
        panel.plot(x, y, color=COLORS[name], marker=marker, markersize=5, label=LABELS[name])
