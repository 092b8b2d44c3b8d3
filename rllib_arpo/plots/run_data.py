"""Reads a run for the plots: Tune's results, the record of trees without its texts, and the stages that it shows."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from ray.air.constants import TRAINING_ITERATION
from ray.tune.result import EXPR_RESULT_FILE

from rllib_arpo.core.metric import number_at
from rllib_arpo.record.read import RecordFile, record_files
from rllib_arpo.record.recorder import RECORD_FOLDER
from rllib_arpo.record.schema import SCHEMA
from rllib_arpo.show.words import name_of_stage

#: Columns of the record that plots read; of a turn's entropies the first `NUM_POSITIONS`.
COLUMNS = (
    "purpose", "iteration", "number", "question_id", "agent_id", "parent", "accuracy", "reward",
    "turn", "depth", "entropies", "after_tool", "delta", "eligible", "children",
)  # fmt: skip
NUM_POSITIONS = 64
TRAINING, EVALUATION = "training", "evaluation"


class MissingDataError(ValueError):
    """A run lacks what a plot shows; the message is one sentence."""


@dataclass(frozen=True, slots=True)
class RunData:
    """Attributes:
    results: of each iteration, in their order; nested, as RLlib reports them.
    record: rows of `COLUMNS`: of the first and the last evaluation, and of all training questions.
    settings: of the record (`record.tables.stated`); empty without one.
    """

    results: Sequence[Mapping[str, Any]]
    record: pa.Table
    settings: Mapping[str, Any]

    def series(self, *path: str) -> tuple[list[int], list[float]]:
        """The iterations that have a number at this path of their result, and the numbers."""
        found = [(result[TRAINING_ITERATION], number_at(result, *path)) for result in self.results]
        return [i for i, value in found if value is not None], [value for _, value in found if value is not None]

    def rows(self, purpose: str) -> pa.Table:
        """The rows of the record of this purpose."""
        return self.record.filter(pc.equal(self.record["purpose"], purpose))


EMPTY_RECORD = SCHEMA.empty_table().select(COLUMNS)


def trial_folders(folder: Path) -> list[Path]:
    """The folders of the trials in `folder`, a trial's or an experiment's.

    Raises:
        ValueError: there is none.
    """
    names = (EXPR_RESULT_FILE, RECORD_FOLDER)
    if any((folder / name).exists() for name in names):
        return [folder]
    found = sorted({path.parent for name in names for path in folder.glob(f"*/{name}")})
    if not found:
        raise ValueError(f"{folder}: not the folder of a run: it has no {EXPR_RESULT_FILE} and no {RECORD_FOLDER}.")
    return found


def read_run(folder: Path, results: Path | None = None) -> RunData:
    """The data of a trial.

    Args:
        folder: of the trial.
        results: the file of Tune's results, if it does not lie there.

    Raises:
        ValueError: a file of the record is not one of this version.
    """
    own = folder / RECORD_FOLDER
    files = record_files(own) if any(own.glob("*.parquet")) else []
    tables = [_rows(file) for file in _first_and_last_evaluation(files)]
    record = pa.concat_tables(tables) if tables else EMPTY_RECORD
    return RunData(
        results=read_results(results or folder / EXPR_RESULT_FILE),
        record=record,
        settings=files[0].settings if files else {},
    )


def read_results(path: Path) -> list[dict[str, Any]]:
    """The result of each iteration, in their order; of an iteration that a restored run did again, the last one.

    A line that is not whole yet is left out.

    Raises:
        ValueError: a row is not JSON; rows are counted from 1.
    """
    rows = (_result(path, number, line) for number, line in enumerate(_whole_lines(path), 1))
    by_iteration = {row[TRAINING_ITERATION]: row for row in rows}
    return [by_iteration[iteration] for iteration in sorted(by_iteration)]


def _whole_lines(path: Path) -> list[str]:
    """The lines of a file without one that is still being written; none if there is no file."""
    return path.read_text(encoding="utf-8").rpartition("\n")[0].splitlines() if path.is_file() else []


def _result(path: Path, number: int, line: str) -> dict[str, Any]:
    try:
        return json.loads(line)
    except json.JSONDecodeError as error:
        raise ValueError(f"{path}, row {number}: is not JSON ({error.msg}).") from None


def _first_and_last_evaluation(files: Sequence[RecordFile]) -> list[RecordFile]:
    """The files without the evaluations between the first and the last one."""
    evaluations = [file for file in files if file.path.stem.startswith(EVALUATION)]
    between = {file.path for file in evaluations[1:-1]}
    return [file for file in files if file.path not in between]


def _rows(file: RecordFile) -> pa.Table:
    table = pq.read_table(file.path, columns=list(COLUMNS)).select(COLUMNS).replace_schema_metadata(None)
    index = COLUMNS.index("entropies")
    cut = pc.list_slice(table["entropies"], 0, NUM_POSITIONS)
    return table.set_column(index, EMPTY_RECORD.schema.field(index), cut.cast(EMPTY_RECORD.schema.field(index).type))


Measured = TypeVar("Measured")


@dataclass(frozen=True, slots=True)
class Stage:
    """Rows of the record that belong together, and what they are."""

    label: str
    rows: pa.Table

    def num_questions(self) -> int:
        """Questions, each as often as it was asked."""
        return self.rows.group_by(["iteration", "number"]).aggregate([]).num_rows


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
