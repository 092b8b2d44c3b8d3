"""Methods by tasks, with the average over tasks: a row averages the models of one method, which are its seeds."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from rllib_arpo.core.intervals import Estimate, average_over_tasks, by_question, estimate_all
from rllib_arpo.envs.question import QA
from rllib_arpo.envs.tasks.specs import SPECS
from rllib_arpo.evaluation.metrics import PASS, score_of
from rllib_arpo.evaluation.model_folders import short_labels
from rllib_arpo.evaluation.plan import TOOLS, Arm
from rllib_arpo.evaluation.report import ALL_EQUAL, SIGNIFICANT, cell, metric_label, plain_console, plain_table

if TYPE_CHECKING:
    from rich.console import Console

JUDGE = "judge"
AVERAGE = "average"


@dataclass(frozen=True, slots=True)
class Scores:
    """The scores of one model in one style on one task.

    Attributes:
        model: its name.
        method: the row in which it is; None: a row of its own.
        style: how it was asked.
        values: [Q, S] one a sample, or [Q]; the questions are the same for all scores of a task.
    """

    model: str
    method: str | None
    style: str
    task: str
    values: np.ndarray


@dataclass(frozen=True, slots=True)
class MethodRow:
    """One row.

    Attributes:
        label: method and style.
        models: their names.
        cells: task -> mean over models, samples and questions. `seed_std` is between models, or with one model between
            samples. Tasks without results are missing.
        average: of the tasks' scores; None unless all of the row's models have been asked all tasks.
        difference: of `average`, minus that of the first row, question by question; None for the first row, and if one
            of both has no average.
    """

    label: str
    models: tuple[str, ...]
    cells: Mapping[str, Estimate]
    average: Estimate | None
    difference: Estimate | None


@dataclass(frozen=True, slots=True)
class MethodTable:
    """The whole table. `metrics` is the name of each task's score; the tasks are in its order."""

    metrics: Mapping[str, str]
    rows: tuple[MethodRow, ...]


def method_table(scores: Sequence[Scores], metrics: Mapping[str, str]) -> MethodTable:
    """The table of these scores; its rows are in the order in which they occur, and the first one is the reference."""
    methods = {s.method: s.method for s in scores if s.method is not None}
    labels = short_labels(list(dict.fromkeys([*methods, *(s.model for s in scores if s.method is None)]))) | methods
    by_row: dict[tuple[str, str], list[Scores]] = {}
    for s in scores:
        by_row.setdefault((s.method or s.model, s.style), []).append(s)
    first = _complete_values(next(iter(by_row.values()), []), metrics)
    rows: list[MethodRow] = []
    for (name, style), own in by_row.items():
        complete = _complete_values(own, metrics)
        models = tuple(_models(own))
        average = None if complete is None else average_over_tasks(complete)
        difference = None
        if rows and first is not None and complete is not None:
            pairs = zip(first, complete, strict=True)
            difference = average_over_tasks([by_question(b) - by_question(a) for a, b in pairs])
        rows.append(
            MethodRow(f"{labels[name]} {style}", models, estimate_all(_values(own, metrics)), average, difference)
        )
    return MethodTable(metrics, tuple(rows))


def _models(scores: Sequence[Scores]) -> list[str]:
    return list(dict.fromkeys(s.model for s in scores))


def _values(scores: Sequence[Scores], tasks: Iterable[str]) -> dict[str, np.ndarray]:
    """Task -> [Q, S] of the only model, or [Q, number of models] of several: the means of their samples."""
    values = {}
    for task in tasks:
        own = [s.values for s in scores if s.task == task]
        if own:
            values[task] = own[0] if len(own) == 1 else np.stack([by_question(v) for v in own], axis=1)
    return values


def _complete_values(scores: Sequence[Scores], tasks: Iterable[str]) -> list[np.ndarray] | None:
    """`_values` of all tasks in their order; None if one of the models was not asked one of them."""
    asked = {(s.model, s.task) for s in scores}
    if asked != {(model, task) for model in _models(scores) for task in tasks}:
        return None
    return list(_values(scores, tasks).values())


def metric_names(arms: Sequence[Arm]) -> dict[str, str]:
    """Task -> how the table calls its score; "judge" if a judge says which answers are right."""
    tools = {arm.task: arm for arm in arms if arm.style == TOOLS}
    return {task: JUDGE if _is_judged(arm) else metric_label(score_of(task))[0] for task, arm in tools.items()}


def _is_judged(arm: Arm) -> bool:
    return arm.first_env.config.qa_metric == JUDGE and _is_knowledge(arm.task) and score_of(arm.task) == f"{PASS}1"


def _is_knowledge(task: str) -> bool:
    return task in SPECS and SPECS[task].ability == QA


def print_method_table(table: MethodTable, console: Console | None = None) -> None:
    """Prints the table and its legend."""
    from rich.console import Console

    console = plain_console(console or Console())
    several = len(table.rows) > 1
    headers = ["", *(f"{task}\n{metric}" for task, metric in table.metrics.items()), AVERAGE]
    headers += [f"{AVERAGE} minus\n{table.rows[0].label}"] * several
    rows = []
    for row in table.rows:
        cells = [cell(row.cells.get(task), 3, "\n") for task in table.metrics] + [cell(row.average, 3, "\n")]
        cells += [cell(row.difference, 3, "\n", is_difference=True)] * several
        count = f"\n({len(row.models)} models)" if len(row.models) > 1 else ""
        rows.append([f"{row.label}{count}", *cells])
    title = f"{len(table.rows)} method{'s' * several}, {len(table.metrics)} tasks"
    console.print(plain_table(headers, rows, title))
    for line in _legend(table):
        console.print(line, highlight=False, markup=False)


def _legend(table: MethodTable) -> list[str]:
    lines = [f"{AVERAGE}: the unweighted mean of the tasks' scores; {ALL_EQUAL}: all questions have this value."]
    if any(len(row.models) > 1 for row in table.rows):
        lines.append("(n models): their mean; sd is the standard deviation between them, which no interval covers.")
    words = [task for task, name in table.metrics.items() if name == "pass@1" and _is_knowledge(task)]
    if words:
        lines.append(f"pass@1 of {', '.join(words)}: the answer has the words of a right one; no judge is set.")
    if any(row.difference is not None for row in table.rows):
        lines.append(f"{SIGNIFICANT}: the interval of the difference, question by question, does not contain 0.")
    return lines


def as_json(table: MethodTable) -> dict[str, Any]:
    return {
        "tasks": [{"task": task, "metric": score_of(task), "name": name} for task, name in table.metrics.items()],
        "rows": [
            {
                "label": row.label,
                "models": list(row.models),
                "scores": {task: dataclasses.asdict(estimate) for task, estimate in row.cells.items()},
                "average": row.average and dataclasses.asdict(row.average),
                "minus_first": row.difference and dataclasses.asdict(row.difference),
            }
            for row in table.rows
        ],
    }
