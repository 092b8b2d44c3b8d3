"""Measures how unsure a model is on a task: entropy by token, dH after tool responses, and what each rule would fork.

A node is a tool response after which the trajectory went on; the next turn's row describes it. Each question enters a
mean once, with the mean of its rows, because its samples are not independent.
"""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.dataset as ds
from rich.table import Table

from rllib_arpo.core.branching import BRANCHING_RULES, BranchingParams, NodeEvidence, decides_by_p
from rllib_arpo.core.intervals import Estimate, estimate_all
from rllib_arpo.evaluation.curves import START, Curve, draw_curves, entropy_curve, groups_of, legend, panels
from rllib_arpo.evaluation.report import cell, plain_table
from rllib_arpo.files import replace_file
from rllib_arpo.record.read import record_files

#: The columns of the record that a measurement reads.
COLUMNS = ("question_id", "number", "agent_id", "counts", "depth", "after_tool", "entropies", "delta")
#: The columns of nodes of which a table has the mean, and their formats.
MEANS = {"delta": "+.3f", "share_positive": ".3f"}
#: The quantiles of dH over nodes.
QUANTILES = (0.1, 0.25, 0.5, 0.75, 0.9)
#: The first tokens of a turn that curves show.
NUM_POSITIONS = 64
#: Bins of the histogram of dH.
BINS = 40


@dataclass(frozen=True, slots=True)
class TaskEntropy:
    """The results for one task.

    Attributes:
        counts: the numbers of questions, samples, samples that do not count, turns and nodes.
        nodes: the nodes with their dH.
        curves: group of turns -> its curve.
        rises: group of nodes -> their number, the means of `MEANS`, and the quantiles of dH.
        rules: fork rule -> the mean probability of a child at a node, if there were no budget.
    """

    task: str
    counts: Mapping[str, int]
    nodes: pd.DataFrame
    curves: Mapping[str, Curve]
    rises: Mapping[str, Mapping[str, Any]]
    rules: Mapping[str, Estimate]


def read_turns(record: Path) -> pd.DataFrame:
    """The rows of a record; a trajectory without a turn has one without entropies."""
    files = [file.path for file in record_files(record)]
    return ds.dataset(files).to_table(columns=list(COLUMNS)).to_pandas()


def task_entropy(task: str, rows: pd.DataFrame, params: BranchingParams) -> TaskEntropy:
    """Computes the results of a task from its `read_turns`; `params.branching` is ignored."""
    samples = rows.drop_duplicates(["number", "agent_id"])
    turns = rows[rows["entropies"].str.len() > 0]
    nodes = turns.dropna(subset="delta").assign(share_positive=lambda table: table["delta"] > 0)
    rules = [name for name in BRANCHING_RULES if decides_by_p(name)]
    chances = nodes.assign(**{name: _chances(name, nodes["delta"], params) for name in rules})
    return TaskEntropy(
        task=task,
        counts={
            "questions": rows["number"].nunique(),
            "samples": len(samples),
            "masked_samples": int((~samples["counts"]).sum()),
            "turns": len(turns),
            "nodes": len(nodes),
        },
        nodes=nodes,
        curves={name: entropy_curve(own, NUM_POSITIONS) for name, own in groups_of(turns).items()},
        rises={name: _rise(own) for name, own in groups_of(nodes).items()},
        rules=_estimates(chances, rules),
    )


def _chances(rule: str, deltas: Sequence[float], params: BranchingParams) -> list[float]:
    """The probabilities of a child at nodes of these dH."""
    chance = BRANCHING_RULES[rule].chance
    assert chance is not None  # True for all rules that decide by P.
    return [chance(NodeEvidence(delta), params) for delta in deltas]


def _rise(nodes: pd.DataFrame) -> dict[str, Any]:
    quantiles = nodes["delta"].quantile(list(QUANTILES)).to_dict()
    return {"nodes": len(nodes), **_estimates(nodes, list(MEANS)), "delta_quantiles": quantiles}


def _estimates(nodes: pd.DataFrame, columns: Sequence[str]) -> dict[str, Estimate]:
    """The mean of each column with its interval over questions; a question enters with the mean of its nodes."""
    means = nodes.groupby("question_id")[list(columns)].mean()
    return estimate_all({name: means[name].to_numpy(float) for name in columns})


def as_json(found: TaskEntropy) -> dict[str, Any]:
    """The results as JSON, without the table of nodes."""
    return {
        "task": found.task,
        **found.counts,
        "curves": {name: _plain_curve(curve) for name, curve in found.curves.items()},
        "rises": {name: _plain(rise) for name, rise in found.rises.items()},
        "rules": _plain(found.rules),
    }


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: dataclasses.asdict(value) if isinstance(value, Estimate) else value for name, value in values.items()}


def _plain_curve(curve: Curve) -> dict[str, list[Any]]:
    half = [None if np.isnan(value) else value for value in curve.half_width.tolist()]
    return {
        "mean": curve.mean.tolist(),
        "half_width": half,
        "questions": curve.num_questions.tolist(),
        "turns": curve.num_turns.tolist(),
    }


def entropy_tables(found: TaskEntropy) -> list[Table]:
    """The rises of groups of nodes, and the rules; empty if there is no node."""
    if found.nodes.empty:
        return []
    rises = [
        [name, str(rise["nodes"]), *(cell(rise[mean], form) for mean, form in MEANS.items())]
        for name, rise in found.rises.items()
    ]
    rules = [[rule, cell(mean, ".3f")] for rule, mean in found.rules.items()]
    return [plain_table(["", "nodes", "dH", "dH > 0"], rises), plain_table(["rule", "P of a child"], rules)]


def write_figure(path: Path, found: TaskEntropy, window: int, title: str) -> None:
    """Draws entropy by token and dH as a PNG, which replaces the file in one step."""
    figure, (by_tool, by_round, histogram) = panels(3)
    figure.suptitle(title)
    for axes, kind in ((by_tool, "tool"), (by_round, "round")):
        chosen = {name: curve for name, curve in found.curves.items() if name.startswith((START, f"{kind} "))}
        draw_curves(axes, chosen, window, f"Entropy by {kind}")
    top = max(axes.get_ylim()[1] for axes in (by_tool, by_round))
    for axes in (by_tool, by_round):
        axes.set_ylim(0, top)
    groups = {f"after {tool or 'a call'}": own["delta"] for tool, own in found.nodes.groupby("after_tool")}
    histogram.set(xlabel=f"dH (k = {window})", ylabel="nodes", title="Rise after tool responses")
    if groups:
        histogram.hist(list(groups.values()), bins=BINS, stacked=True, label=list(groups))
        histogram.axvline(0.0, color="black", linewidth=0.8)
        legend(histogram)
    with replace_file(path) as partial:
        figure.savefig(partial, format="png")
