"""Draws plots from a run's record: entropy by token (the paper's first figure), and forks."""

import numpy as np
import pandas as pd
from matplotlib.figure import Figure

from rllib_arpo.plots.curves import START, Curve, draw_curves, entropy_curve, groups_of
from rllib_arpo.plots.run_data import NUM_POSITIONS, TRAINING, MissingDataError, RunData, stages
from rllib_arpo.plots.style import count_axis, panels


def curves_by_stage(run: RunData) -> dict[str, dict[str, Curve]]:
    """Stage -> group of turns (`START` or "tool NAME") -> the entropy by position, for trajectories from the prompt.

    Forks would bias a mean, since they start at a high entropy.

    Raises:
        MissingDataError: the record is missing, or has no entropy.
    """
    found = {name: _curves(rows[rows["parent"].isna()]) for name, rows in stages(run).items()}
    if not any(found.values()):
        raise MissingDataError("No recorded turn has an entropy.")
    return {name: curves for name, curves in found.items() if curves}


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


def forks_by_depth(run: RunData) -> pd.DataFrame:
    """The forks of the recorded training questions by the number of turns above them.

    The columns are "per_question", forked trajectories, and "share", the share of forked nodes among the nodes decided
    while budget remained (NaN without such a node).

    Raises:
        MissingDataError: the record is missing, or has no training question, or no fork.
    """
    trained = run.rows(TRAINING)
    if trained.empty:
        raise MissingDataError("The record has no training question: set a larger record_share.")
    nodes = trained.dropna(subset="children")
    nodes = nodes.assign(forked=nodes["children"] > 0, decided=nodes["eligible"].astype(bool))
    at = nodes.groupby("depth")[["children", "forked", "decided"]].sum()
    if not at["children"].sum():
        raise MissingDataError("No recorded training question was forked.")
    num_questions = trained.groupby(["iteration", "number"]).ngroups  # A repeated question counts again.
    return pd.DataFrame({"per_question": at["children"] / num_questions, "share": at["forked"] / at["decided"]})


def draw_forks(run: RunData) -> Figure:
    forks = forks_by_depth(run)
    figure, (count, share) = panels(2, sharex=True)
    count.bar(forks.index, forks["per_question"])
    share.bar(forks.index, forks["share"])
    count.set_ylabel("forks per question")
    share.set(ylabel="share of the nodes decided", ylim=(0, 1.02))
    for panel in (count, share):
        count_axis(panel, "turns before the fork")
        panel.grid(visible=False, axis="x")
    return figure
