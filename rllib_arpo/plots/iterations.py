"""The plots of Tune's results, by iteration: accuracy and reward, forks, the engine-learner gap, seconds."""

from collections.abc import Sequence

import numpy as np
import pyarrow.compute as pc
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from ray.air.constants import TIME_THIS_ITER_S, TRAINING_ITERATION
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.utils.metrics import ENV_RUNNER_RESULTS, EPISODE_RETURN_MEAN, EVALUATION_RESULTS, LEARNER_RESULTS, TIMERS

from rllib_arpo.core.results import number_at
from rllib_arpo.learner.metrics import GUARD_LIMITS
from rllib_arpo.plots.run_data import EVALUATION, TRAINING, MissingDataError, RunData
from rllib_arpo.plots.style import COLORS, count_axis, legend, panels
from rllib_arpo.tracking.console import SYNC_TIMER, TIMER_LABELS

LABELS = {TRAINING: "training, as sampled", EVALUATION: "evaluation, held out"}
#: Name on the plots -> the metric below `env_runners`, a mean per trajectory, and the column of the record.
MEASURES = {"accuracy": ("accuracy", "accuracy"), "mean reward": (EPISODE_RETURN_MEAN, "reward")}


def learning_curves(run: RunData, measure: str) -> dict[str, tuple[list[int], list[float]]]:
    """`TRAINING` and `EVALUATION` -> iterations and values; an evaluation before the first iteration is at 0."""
    metric, column = MEASURES[measure]
    iterations, values = run.series(EVALUATION_RESULTS, ENV_RUNNER_RESULTS, metric)
    if (before := _before_training(run, column)) is not None:
        iterations, values = [0, *iterations], [before, *values]
    return {TRAINING: run.series(ENV_RUNNER_RESULTS, metric), EVALUATION: (iterations, values)}


def draw_progress(run: RunData) -> Figure:
    """Draws accuracy and reward of training and evaluation.

    Raises:
        MissingDataError: no result has one of them.
    """
    by_measure = {measure: learning_curves(run, measure) for measure in MEASURES}
    if not any(values for curves in by_measure.values() for _, values in curves.values()):
        raise MissingDataError("No result of the run has an accuracy or a reward.")
    figure, axes = panels(2)
    for panel, (measure, curves) in zip(axes, by_measure.items(), strict=True):
        for name, curve in curves.items():
            _draw(panel, *curve, name)
        panel.set_ylabel(measure)
        count_axis(panel, "iteration")
    axes[0].set_ylim(-0.02, 1.02)
    legend(axes[0])
    return figure


def draw_accuracy_by_calls(run: RunData) -> Figure:
    """Draws the accuracy against the tool calls that training has executed.

    Raises:
        MissingDataError: it has executed none.
    """
    calls = {0: 0.0, **dict(zip(*run.series(ENV_RUNNER_RESULTS, "tool_calls_executed_lifetime"), strict=True))}
    if not any(calls.values()):
        raise MissingDataError("The run has executed no tool call.")
    figure, (panel,) = panels(1)
    for name, curve in learning_curves(run, "accuracy").items():
        known = [(calls[iteration], value) for iteration, value in zip(*curve, strict=True) if iteration in calls]
        _draw(panel, [count for count, _ in known], [value for _, value in known], name)
    panel.set(xlabel="tool calls executed in training", ylabel="accuracy", ylim=(-0.02, 1.02))
    legend(panel)
    return figure


def _before_training(run: RunData, column: str) -> float | None:
    """The mean over trajectories of the recorded evaluation before the first iteration, which no result has."""
    rows = run.rows(EVALUATION)
    leaves = rows.filter(pc.equal(rows["iteration"], 0)).group_by(["question_id", "agent_id"])
    mean: float | None = pc.mean(leaves.aggregate([(column, "min")])[f"{column}_min"]).as_py()
    return mean


def _draw(panel: Axes, x: Sequence[float], y: Sequence[float], name: str) -> None:
    if x:
        marker = "o" if name == EVALUATION else "."
        panel.plot(x, y, color=COLORS[name], marker=marker, markersize=5, label=LABELS[name])


GAP = "engine_logprob_gap"
#: Timers of an iteration -> their names in the plot.
PARTS = {timer: timer for timer in TIMER_LABELS} | {SYNC_TIMER: "weights to the engines"}
REST = "evaluation and the rest"
PART_COLORS = dict(zip(PARTS.values(), ("tab:blue", "tab:green", "tab:purple"), strict=True)) | {
    REST: COLORS["evaluation"]
}


def draw_fork_history(run: RunData) -> Figure:
    """Draws how many trajectories were forked in each iteration, and after how many turns.

    Raises:
        MissingDataError: no iteration has a fork.
    """
    iterations, forks = run.series(ENV_RUNNER_RESULTS, "forks_per_question")
    if not any(forks):
        raise MissingDataError("No iteration has a fork.")
    (forked, mean), (_, low), (_, high) = (
        run.series(ENV_RUNNER_RESULTS, f"fork_depth_{name}") for name in ("mean", "p10", "p90")
    )
    figure, (count, depth) = panels(2, sharex=True)
    color = COLORS["training"]
    count.plot(iterations, forks, marker=".", color=color)
    count.set(ylabel="forks per question", ylim=(0, None))
    depth.plot(forked, mean, marker=".", color=color, label="mean")
    depth.fill_between(forked, low, high, color=color, alpha=0.18, linewidth=0, label="80 % of the forks")
    depth.set(ylabel="turns before the fork", ylim=(0, None))
    legend(depth)
    for panel in (count, depth):
        count_axis(panel, "iteration")
    return figure


def draw_gap(run: RunData) -> Figure:
    """Draws how far the engine's log-probs of the sampled tokens are from the learner's, and the limit of the guard.

    Raises:
        MissingDataError: no result has the gap.
    """
    iterations, gap = run.series(LEARNER_RESULTS, DEFAULT_MODULE_ID, GAP)
    if not gap:
        raise MissingDataError(f"No result of the run has the metric {GAP}.")
    guards = run.results[-1].get("config", {}).get("guards") or {}
    limit = (GUARD_LIMITS | guards)[GAP]
    figure, (panel,) = panels(1)
    panel.plot(iterations, gap, marker=".", label="mean of |learner − engine|")
    if limit is not None:
        panel.axhline(limit, color="tab:red", linestyle="--", linewidth=1.2, label="limit of the guard")
    if min(gap) > 0:
        panel.set_yscale("log")
    panel.set_ylabel("log-probs of sampled tokens (nats)")
    count_axis(panel, "iteration")
    legend(panel)
    return figure


def seconds_of(run: RunData) -> tuple[list[int], dict[str, np.ndarray]]:
    """The iterations, and name of a part -> [I] its seconds, which sum up to the whole iteration.

    The evaluation has no part of its own, since RLlib reports its seconds as a moving average.

    Raises:
        MissingDataError: no result has the seconds of its iteration.
    """
    timed = [result for result in run.results if number_at(result, TIME_THIS_ITER_S) is not None]
    if not timed:
        raise MissingDataError("No result of the run has the seconds of its iteration.")
    parts = {
        name: np.array([number_at(result, TIMERS, timer) or 0.0 for result in timed])
        for timer, name in PARTS.items()
    }  # fmt: skip
    whole = np.array([result[TIME_THIS_ITER_S] for result in timed])
    parts[REST] = np.maximum(whole - sum(parts.values()), 0.0)
    return [result[TRAINING_ITERATION] for result in timed], parts


def draw_seconds(run: RunData) -> Figure:
    """Draws where the seconds of an iteration go."""
    iterations, parts = seconds_of(run)
    figure, (panel,) = panels(1)
    bottom = np.zeros(len(iterations))
    for name, values in parts.items():
        panel.bar(iterations, values, width=1.0, bottom=bottom, color=PART_COLORS[name], label=name)
        bottom += values
    panel.set_ylabel("seconds")
    panel.grid(visible=False, axis="x")
    count_axis(panel, "iteration")
    # From above, as the bars are stacked.
    handles, labels = panel.get_legend_handles_labels()
    panel.legend(
        handles[::-1], labels[::-1], frameon=False, fontsize="small", loc="center left", bbox_to_anchor=(1, 0.5)
    )
    return figure
