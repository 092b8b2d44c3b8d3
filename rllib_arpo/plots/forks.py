"""Plots where trajectories are forked: forks and the share of forked nodes, by turn."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from matplotlib.figure import Figure

from rllib_arpo.plots.run_data import MissingDataError, RunData
from rllib_arpo.plots.stages import Stage, halves
from rllib_arpo.plots.style import count_axis, counted, panels


@dataclass(frozen=True, slots=True)
class Forks:
    """The forks of some training questions, by the number of turns above them.

    Attributes:
        turns: [D].
        per_question: [D] forked trajectories.
        share: [D] of the nodes that were decided while budget remained, those that were forked; NaN if none was.
        num_questions: that were asked.
    """

    turns: np.ndarray
    per_question: np.ndarray
    share: np.ndarray
    num_questions: int


def forks_by_half(run: RunData) -> dict[str, Forks]:
    """The first and the second half of the iterations -> their forks.

    Raises:
        MissingDataError: the record is missing, has no training question or no fork.
    """
    found = {stage.label: _forks(stage) for stage in halves(run)}
    if not any(forks.per_question.sum() for forks in found.values()):
        raise MissingDataError("No recorded training question was forked.")
    return found


def draw_forks(run: RunData) -> Figure:
    by_half = forks_by_half(run)
    figure, (count, share) = panels(2, sharex=True)
    width = 0.8 / len(by_half)
    for i, (label, forks) in enumerate(by_half.items()):
        place = forks.turns + width * (i - (len(by_half) - 1) / 2)
        questions = counted(forks.num_questions, "question")
        count.bar(place, forks.per_question, width, label=f"{label} ({questions})")
        share.bar(place, forks.share, width)
    count.set_ylabel("forks per question")
    share.set(ylabel="share of the nodes decided", ylim=(0, 1.02))
    for panel in (count, share):
        count_axis(panel, "turns before the fork")
        panel.grid(visible=False, axis="x")
    figure.legend(loc="outside upper center", ncols=len(by_half), frameon=False, fontsize="small")
    return figure


def _forks(stage: Stage) -> Forks:
    nodes = stage.rows.filter(pc.is_valid(stage.rows["children"]))
    nodes = nodes.append_column("forked", pc.greater(nodes["children"], 0).cast(pa.int32()))
    nodes = nodes.append_column("decided", nodes["eligible"].cast(pa.int32()))
    places = nodes.group_by("depth").aggregate([("children", "sum"), ("forked", "sum"), ("decided", "sum")])
    places = places.sort_by("depth")
    children, forked, decided = (
        places[f"{name}_sum"].to_numpy().astype(float) for name in ("children", "forked", "decided")
    )
    share = np.divide(forked, decided, out=np.full(len(forked), np.nan), where=decided > 0)
    questions = stage.num_questions()
    return Forks(places["depth"].to_numpy(), children / questions, share, questions)
