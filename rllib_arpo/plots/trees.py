"""Draws plots from a run's record: entropy by token (the paper's first figure), its rise dH by turn and tool, forks."""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from rllib_arpo.core.intervals import half_width
from rllib_arpo.plots.curves import START, Curve, draw_curves, entropy_curve, groups_of
from rllib_arpo.plots.run_data import NUM_POSITIONS, MissingDataError, RunData, halves, of_stages
from rllib_arpo.plots.style import count_axis, counted, legend, panels


def curves_by_stage(run: RunData) -> dict[str, dict[str, Curve]]:
    """Stage -> group of turns (`START` or "tool NAME") -> the entropy by position, for trajectories from the prompt.

    Raises:
        MissingDataError: the record is missing, or has no entropy.
    """
    return of_stages(run, _curves, "No recorded turn has an entropy.")


def draw_entropy(run: RunData) -> Figure:
    by_stage = curves_by_stage(run)
    figure, axes = panels(len(by_stage))
    for panel, (label, curves) in zip(axes, by_stage.items(), strict=True):
        draw_curves(panel, curves, run.settings["entropy_window"], label)
    highest = max(panel.get_ylim()[1] for panel in axes)
    longest = max(float(np.max(np.asarray(line.get_xdata()))) for panel in axes for line in panel.lines)
    for panel in axes:
        panel.set(xlim=(0.5, longest + 0.5), ylim=(0.0, highest))
        panel.label_outer()
    return figure


def _curves(rows: pd.DataFrame) -> dict[str, Curve]:
    """Leaves out turns without an entropy, such as a failing engine's."""
    groups = groups_of(rows[rows["entropies"].str.len() > 0])
    return {
        name: entropy_curve(own, NUM_POSITIONS) for name, own in groups.items() if name.startswith((START, "tool "))
    }


def rises_by_stage(run: RunData) -> dict[str, dict[str, pd.DataFrame]]:
    """Stage -> tool -> dH at the nodes of trajectories from the prompt, by the number of turns above the node.

    Each question counts once, with the mean of its nodes. The columns are "mean", "half_width" (of the 95 % t interval
    over questions; NaN with fewer than two) and "nodes", the number of nodes.

    Raises:
        MissingDataError: the record is missing, or has no dH.
    """
    return of_stages(run, _rises, "No recorded turn followed a tool response, so there is no rise to measure.")


def draw_rises(run: RunData) -> Figure:
    by_stage = rises_by_stage(run)
    figure, axes = panels(len(by_stage), sharex=True, sharey=True)
    for panel, (label, rises) in zip(axes, by_stage.items(), strict=True):
        panel.axhline(0.0, color="black", linewidth=0.8)
        for tool, rise in rises.items():
            name = f"after {tool or 'a call'} ({counted(rise['nodes'].sum(), 'node')})"
            (line,) = panel.plot(rise.index, rise["mean"], marker="o", markersize=4, label=name)
            low, high = (rise["mean"] + sign * rise["half_width"].fillna(0.0) for sign in (-1, 1))
            panel.fill_between(rise.index, low, high, color=line.get_color(), alpha=0.18, linewidth=0)
        panel.set_title(label)
        count_axis(panel, "turns before the tool response")
        legend(panel)
    axes[0].set_ylabel(f"dH ({run.settings['entropy_normalization']}, k = {run.settings['entropy_window']})")
    return figure


def _rises(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    by_question = rows.dropna(subset="delta").groupby(["after_tool", "depth", "question_id"])["delta"]
    by_turn = by_question.agg(["mean", "count"]).groupby(["after_tool", "depth"])
    found = by_turn.agg(
        mean=("mean", "mean"), deviation=("mean", "std"), questions=("mean", "count"), nodes=("count", "sum")
    )
    found["half_width"] = half_width(found["deviation"].to_numpy(), found["questions"].to_numpy())
    return {tool: own.droplevel("after_tool") for tool, own in found.groupby("after_tool")}


def forks_by_half(run: RunData) -> dict[str, pd.DataFrame]:
    """Half of the iterations -> its forks by the number of turns above them.

    The columns are "per_question", forked trajectories, and "share", the share of forked nodes among the nodes decided
    while budget remained (NaN without such a node).

    Raises:
        MissingDataError: the record is missing, or has no training question, or no fork.
    """
    found = {}
    for name, rows in halves(run).items():
        num_questions = rows.groupby(["iteration", "number"]).ngroups  # A repeated question counts again.
        found[f"{name} ({counted(num_questions, 'question')})"] = _forks(rows, num_questions)
    if not any(forks["per_question"].sum() for forks in found.values()):
        raise MissingDataError("No recorded training question was forked.")
    return found


def _forks(rows: pd.DataFrame, num_questions: int) -> pd.DataFrame:
    nodes = rows.dropna(subset="children")
    nodes = nodes.assign(forked=nodes["children"] > 0, decided=nodes["eligible"].astype(bool))
    at = nodes.groupby("depth")[["children", "forked", "decided"]].sum()
    return pd.DataFrame({"per_question": at["children"] / num_questions, "share": at["forked"] / at["decided"]})


def draw_forks(run: RunData) -> Figure:
    by_half = forks_by_half(run)
    figure, (count, share) = panels(2, sharex=True)
    width = 0.8 / len(by_half)
    for i, (label, forks) in enumerate(by_half.items()):
        x = forks.index + width * (i - (len(by_half) - 1) / 2)
        count.bar(x, forks["per_question"], width, label=label)
        share.bar(x, forks["share"], width)
    count.set_ylabel("forks per question")
    share.set(ylabel="share of the nodes decided", ylim=(0, 1.02))
    for panel in (count, share):
        count_axis(panel, "turns before the fork")
        panel.grid(visible=False, axis="x")
    figure.legend(loc="outside upper center", ncols=len(by_half), frameon=False, fontsize="small")
    return figure
