"""The stages of a run that its record shows: the first evaluation, the last one, and training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from rllib_arpo.plots.run_data import EVALUATION, TRAINING, MissingDataError, RunData
from rllib_arpo.show.words import name_of_stage

Measured = TypeVar("Measured")


@dataclass(frozen=True, slots=True)
class Stage:
    """Rows of the record that belong together, and what they are."""

    label: str
    rows: pa.Table

    def num_questions(self) -> int:
        """Questions, each as often as it was asked."""
        return self.rows.group_by(["iteration", "question_id"]).aggregate([]).num_rows


def stages(run: RunData) -> list[Stage]:
    """The first and the last evaluation and training, as far as the record has them.

    Raises:
        MissingDataError: there is no record.
    """
    held_out = run.rows(EVALUATION)
    found = [
        Stage(name_of_stage(EVALUATION, iteration), _of_iterations(held_out, iteration, iteration))
        for iteration in _ends(held_out)
    ]
    trained = run.rows(TRAINING)
    if trained.num_rows:
        found.append(Stage(_iterations(*_first_and_last(trained)), trained))
    if not found:
        raise MissingDataError("The run has no record of its trees (record_share=None, or nothing was recorded yet).")
    return found


def of_stages(run: RunData, measure: Callable[[pa.Table], Measured], missing: str) -> dict[str, Measured]:
    """Stage -> what is measured of its turns of trajectories from the prompt, without the stages that have nothing.

    Raises:
        MissingDataError: there is no record, or no stage has anything: `missing` says what.
    """
    found = {stage.label: measured for stage in stages(run) if (measured := measure(_from_the_prompt(stage.rows)))}
    if not found:
        raise MissingDataError(missing)
    return found


def halves(run: RunData) -> list[Stage]:
    """The recorded training questions of the first and of the second half of the iterations; of one iteration, all.

    Raises:
        MissingDataError: the record has none.
    """
    trained = run.rows(TRAINING)
    if not trained.num_rows:
        raise MissingDataError("The record has no training question: a larger record_share keeps more of them.")
    first, last = _first_and_last(trained)
    middle = (first + last) // 2
    parts = [(first, last)] if first == last else [(first, middle), (middle + 1, last)]
    return [Stage(_iterations(*part), rows) for part in parts if (rows := _of_iterations(trained, *part)).num_rows]


def _from_the_prompt(rows: pa.Table) -> pa.Table:
    """The turns of trajectories from the prompt: forks start where the entropy is high, and would bias a mean."""
    return rows.filter(pc.and_(pc.is_null(rows["parent"]), pc.is_valid(rows["turn"])))


def _of_iterations(rows: pa.Table, first: int, last: int) -> pa.Table:
    own = rows["iteration"]
    return rows.filter(pc.and_(pc.greater_equal(own, first), pc.less_equal(own, last)))


def _first_and_last(rows: pa.Table) -> tuple[int, int]:
    ends = pc.min_max(rows["iteration"]).as_py()
    return ends["min"], ends["max"]


def _ends(rows: pa.Table) -> list[int]:
    return sorted(set(_first_and_last(rows))) if rows.num_rows else []


def _iterations(first: int, last: int) -> str:
    return f"training, iteration {first}" if first == last else f"training, iterations {first} to {last}"
