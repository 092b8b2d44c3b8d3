"""dH, the rise of the entropy after tool responses, by turn and tool."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from matplotlib.figure import Figure

from rllib_arpo.core.intervals import half_width
from rllib_arpo.plots.run_data import RunData
from rllib_arpo.plots.stages import of_stages
from rllib_arpo.plots.style import count_axis, counted, legend, panels


@dataclass(frozen=True, slots=True)
class Rise:
    """dH after responses of one tool; each question counts once, by the mean of its nodes.

    Attributes:
        turns: [D] turns above the node.
        mean: [D] dH.
        half_width: [D] of the 95 % interval over questions (Student's t); NaN for fewer than two.
        num_nodes: [D].
    """

    turns: np.ndarray
    mean: np.ndarray
    half_width: np.ndarray
    num_nodes: np.ndarray


def rises_by_stage(run: RunData) -> dict[str, dict[str, Rise]]:
    """Stage -> tool -> dH at the nodes of trajectories from the prompt.

    Raises:
        MissingDataError: the record is missing, or has no dH.
    """
    return of_stages(run, _rises, "No recorded tool response was followed by a turn, so that nothing could rise.")


def draw_rises(run: RunData) -> Figure:
    by_stage = rises_by_stage(run)
    figure, axes = panels(len(by_stage), sharex=True, sharey=True)
    for panel, (label, rises) in zip(axes, by_stage.items(), strict=True):
        panel.axhline(0.0, color="black", linewidth=0.8)
        for tool, rise in rises.items():
            name = f"after {tool or 'a call'} ({counted(rise.num_nodes.sum(), 'node')})"
            (line,) = panel.plot(rise.turns, rise.mean, marker="o", markersize=4, label=name)
            half = np.nan_to_num(rise.half_width)
            color = line.get_color()
            panel.fill_between(rise.turns, rise.mean - half, rise.mean + half, color=color, alpha=0.18, linewidth=0)
        panel.set_title(label)
        count_axis(panel, "turns before the tool response")
        legend(panel)
    axes[0].set_ylabel(f"dH ({run.settings['entropy_normalization']}, k = {run.settings['entropy_window']})")
    return figure


def _rises(rows: pa.Table) -> dict[str, Rise]:
    nodes = rows.filter(pc.is_valid(rows["delta"]))
    by_question = nodes.group_by(["after_tool", "depth", "question_id"]).aggregate(
        [("delta", "mean"), ("delta", "count")]
    )
    sample = pc.VarianceOptions(ddof=1)
    by_turn = by_question.group_by(["after_tool", "depth"]).aggregate(
        [("delta_mean", "mean"), ("delta_mean", "stddev", sample), ("delta_mean", "count"), ("delta_count", "sum")]
    )
    found = {}
    for tool in sorted(set(by_turn["after_tool"].to_pylist())):
        own = by_turn.filter(pc.equal(by_turn["after_tool"], tool)).sort_by("depth")
        mean, deviation, questions, count = (
            own[name].to_numpy()
            for name in ("delta_mean_mean", "delta_mean_stddev", "delta_mean_count", "delta_count_sum")
        )
        half = half_width(deviation.astype(float), questions)
        found[tool] = Rise(own["depth"].to_numpy(), mean, half, count)
    return found
