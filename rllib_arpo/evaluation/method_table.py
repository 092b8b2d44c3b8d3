"""Methods by tasks, with the average over tasks: a row averages the models of one method, which are its seeds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rllib_arpo.evaluation.bootstrap import Estimate, average_over_tasks, by_question, estimate_all
from rllib_arpo.evaluation.model_folders import short_labels


@dataclass(frozen=True, slots=True)
class Scores:
    """The scores of one model in one style on one task.

    Attributes:
        model: its name.
        method: the row in which it is; None: a row of its own.
        style: how it was asked.
        source: the folder of the results; the same model in two folders counts as two models of its row.
        values: [Q, S] one a sample, or [Q]; the questions are the same for all scores of a task.
    """

    model: str
    method: str | None
    style: str
    task: str
    source: str
    values: np.ndarray


@dataclass(frozen=True, slots=True)
class MethodRow:
    """One row.

    Attributes:
        label: method and style.
        models: its models, each with the folder of its results.
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
    labels = short_labels(list(dict.fromkeys(s.model for s in scores if s.method is None)))
    by_label: dict[str, list[Scores]] = {}
    for s in scores:
        by_label.setdefault(f"{labels[s.model] if s.method is None else s.method} {s.style}", []).append(s)
    first = _complete_values(next(iter(by_label.values()), []), metrics)
    rows = []
    for label, own in by_label.items():
        complete = _complete_values(own, metrics)
        models = tuple(f"{model} ({source})" for model, source in _models(own))
        average = None if complete is None else average_over_tasks(complete)
        difference = None
        if rows and first is not None and complete is not None:
            pairs = zip(first, complete, strict=True)
            difference = average_over_tasks([by_question(b) - by_question(a) for a, b in pairs])
        rows.append(MethodRow(label, models, estimate_all(_values(own, metrics)), average, difference))
    return MethodTable(metrics, tuple(rows))


def _models(scores: Sequence[Scores]) -> list[tuple[str, str]]:
    return list(dict.fromkeys((s.model, s.source) for s in scores))


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
    asked = {(s.model, s.source, s.task) for s in scores}
    if asked != {(*model, task) for model in _models(scores) for task in tasks}:
        return None
    return list(_values(scores, tasks).values())
