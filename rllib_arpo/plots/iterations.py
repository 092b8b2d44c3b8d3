"""The plots of Tune's results alone, by iteration: forks, the engine-learner gap, and seconds."""

from __future__ import annotations

import numpy as np
from matplotlib.figure import Figure
from ray.air.constants import TIME_THIS_ITER_S, TRAINING_ITERATION
from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.utils.metrics import ENV_RUNNER_RESULTS, LEARNER_RESULTS, TIMERS

from rllib_arpo.core.results import number_at
from rllib_arpo.learner.guards import GUARD_LIMITS
from rllib_arpo.plots.run_data import MissingDataError, RunData
from rllib_arpo.plots.style import COLORS, count_axis, legend, panels
from rllib_arpo.tracking.console import SYNC_TIMER, TIMER_LABELS

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
