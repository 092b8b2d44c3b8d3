"""Reads a run for the plots: Tune's result of each iteration, and the record of trees without its texts."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from ray.air.constants import TRAINING_ITERATION
from ray.tune.result import EXPR_RESULT_FILE

from rllib_arpo.core.results import number_at
from rllib_arpo.record.read import RecordFile, record_files
from rllib_arpo.record.recorder import RECORD_FOLDER
from rllib_arpo.record.schema import SCHEMA

#: Columns of the record that plots read; of a turn's entropies the first `NUM_POSITIONS`.
COLUMNS = (
    "purpose", "iteration", "question_id", "agent_id", "parent", "accuracy", "reward",
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
    settings: of the record (docs/watch.md); empty without one.
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


def trial_folder_of(folder: str | Path) -> Path:
    """The folder of the only trial in `folder`, a trial's or an experiment's.

    Raises:
        ValueError: there is none, or there are several.
    """
    folder = Path(folder)
    if (folder / EXPR_RESULT_FILE).is_file() or (folder / RECORD_FOLDER).is_dir():
        return folder
    found = sorted({path.parent for name in (EXPR_RESULT_FILE, RECORD_FOLDER) for path in folder.glob(f"*/{name}")})
    if not found:
        raise ValueError(f"{folder}: not the folder of a run: it has no {EXPR_RESULT_FILE} and no {RECORD_FOLDER}.")
    if len(found) > 1:
        raise ValueError(f"{folder}: has {len(found)} trials; name the folder of one, such as {found[0]}.")
    return found[0]


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
