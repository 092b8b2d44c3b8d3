"""The plots of a run's record: entropy by token (the paper's first figure), its rise dH by turn and tool, and forks."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from matplotlib.figure import Figure

from rllib_arpo.core.intervals import half_width
from rllib_arpo.evaluation.entropy.figure import draw_curves
from rllib_arpo.evaluation.entropy.measures import START, Curve, entropy_curve
from rllib_arpo.plots.run_data import NUM_POSITIONS, MissingDataError, RunData, Stage, halves, of_stages
from rllib_arpo.plots.style import count_axis, counted, legend, panels


def curves_by_stage(run: RunData) -> dict[str, dict[str, Curve]]:
    """Stage -> `START` and "tool NAME" -> the entropy by position in such turns of trajectories from the prompt.

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


def _curves(rows: pa.Table) -> dict[str, Curve]:
    """Turns without an entropy, such as those of a failing engine, are left out."""
    measured = rows.filter(pc.greater(pc.list_value_length(rows["entropies"]), 0))
    tools = sorted(set(measured["after_tool"].to_pylist()) - {None})
    groups = {START: pc.is_null(measured["after_tool"])}
    groups |= {f"tool {tool or 'a call'}": pc.equal(measured["after_tool"], tool) for tool in tools}
    turns = {name: list(_turns(measured.filter(chosen))) for name, chosen in groups.items()}
    return {name: entropy_curve(own, NUM_POSITIONS) for name, own in turns.items() if own}


def _turns(rows: pa.Table) -> Iterator[tuple[int, np.ndarray]]:
    """(number of the question, entropies) of each turn."""
    questions = pc.dictionary_encode(rows["question_id"].combine_chunks()).indices.to_numpy()
    for question, entropies in zip(questions, rows["entropies"], strict=True):
        yield int(question), entropies.values.to_numpy()


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
