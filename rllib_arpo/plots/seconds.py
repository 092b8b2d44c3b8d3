"""Plots the seconds of each part of an iteration."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure
from ray.air.constants import TIME_THIS_ITER_S, TRAINING_ITERATION
from ray.rllib.utils.metrics import TIMERS

from rllib_arpo.core.results import number_at
from rllib_arpo.plots.run_data import MissingDataError, RunData
from rllib_arpo.plots.style import COLORS, count_axis, panels

#: Timers of an iteration -> their names in the plot.
PARTS = {"rollout": "rollout", "update": "update", "sync": "weights to the engines"}
REST = "evaluation and the rest"
PART_COLORS = {"rollout": "tab:blue", "update": "tab:green", PARTS["sync"]: "tab:purple", REST: COLORS["evaluation"]}


@dataclass(frozen=True, slots=True)
class Seconds:
    """Attributes:
    iterations: [I].
    parts: name -> [I] seconds; they sum up to the whole iteration.
    """

    iterations: np.ndarray
    parts: dict[str, np.ndarray]


def seconds_of(run: RunData) -> Seconds:
    """The seconds of the iterations; a part that a result lacks has none.

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
    return Seconds(np.array([result[TRAINING_ITERATION] for result in timed]), parts)


def draw_seconds(run: RunData) -> Figure:
    seconds = seconds_of(run)
    figure, (panel,) = panels(1)
    bottom = np.zeros(len(seconds.iterations))
    for name, values in seconds.parts.items():
        panel.bar(seconds.iterations, values, width=1.0, bottom=bottom, color=PART_COLORS[name], label=name)
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
