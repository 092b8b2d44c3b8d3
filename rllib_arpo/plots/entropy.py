"""Entropy by token position, from the start and after tool responses: the paper's first figure, for this run."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from matplotlib.figure import Figure

from rllib_arpo.evaluation.entropy.curves import START, Curve, entropy_curve
from rllib_arpo.evaluation.entropy.figure import draw_curves
from rllib_arpo.plots.run_data import NUM_POSITIONS, RunData
from rllib_arpo.plots.stages import of_stages
from rllib_arpo.plots.style import panels


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
