"""Reads a run for the plots: Tune's results, and the record of trees without its texts, split into stages."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow.compute as pc
import pyarrow.parquet as pq
from ray.air.constants import TRAINING_ITERATION
from ray.tune.result import EXPR_RESULT_FILE

from rllib_arpo.core.metric import number_at
from rllib_arpo.record.read import RecordFile, record_files
from rllib_arpo.record.recorder import RECORD_FOLDER
from rllib_arpo.record.schema import SCHEMA
from rllib_arpo.show.words import name_of_stage

#: Columns of the record that plots read. They read only the first `NUM_POSITIONS` of a turn's entropies.
COLUMNS = (
    "purpose", "iteration", "number", "question_id", "agent_id", "parent", "accuracy", "reward",
    "turn", "depth", "entropies", "after_tool", "delta", "eligible", "children",
)  # fmt: skip
NUM_POSITIONS = 64
TRAINING, EVALUATION = "training", "evaluation"


class MissingDataError(ValueError):
    """A run lacks the data for a plot; the message is one sentence."""


@dataclass(frozen=True, slots=True)
class RunData:
    """The data of a run for plots.

    Attributes:
        results: the iterations' results in order; nested, as RLlib reports them.
        record: the `COLUMNS` of the first and the last evaluation and of all training questions.
        settings: the record's settings (`record.tables.stated`); empty without a record.
    """

    results: Sequence[Mapping[str, Any]]
    record: pd.DataFrame
    settings: Mapping[str, Any]

    def series(self, *path: str) -> tuple[list[int], list[float]]:
        """The iterations that have a number at this path of their result, and the numbers."""
        found = [(result[TRAINING_ITERATION], number_at(result, *path)) for result in self.results]
        return [i for i, value in found if value is not None], [value for _, value in found if value is not None]

    def rows(self, purpose: str) -> pd.DataFrame:
        """The record's rows with this purpose."""
        return self.record[self.record["purpose"] == purpose]


#: The record of a run that has none.
EMPTY_RECORD = SCHEMA.empty_table().select(COLUMNS).to_pandas()


def trial_folders(folder: Path) -> list[Path]:
    """The folders of the trials in `folder`, which is a trial or an experiment.

    Raises:
        ValueError: it has no trial.
    """
    names = (EXPR_RESULT_FILE, RECORD_FOLDER)
    if any((folder / name).exists() for name in names):
        return [folder]
    found = sorted({path.parent for name in names for path in folder.glob(f"*/{name}")})
    if not found:
        raise ValueError(f"{folder}: is not the folder of a run: it has no {EXPR_RESULT_FILE} and no {RECORD_FOLDER}.")
    return found


def read_run(folder: Path, results: Path | None = None) -> RunData:
    """The data of a trial.

    Args:
        folder: the trial's folder.
        results: the file of Tune's results, if it is somewhere else.

    Raises:
        ValueError: a file of the record has another version.
    """
    own = folder / RECORD_FOLDER
    files = record_files(own) if any(own.glob("*.parquet")) else []
    tables = [_rows(file) for file in _first_and_last_evaluation(files)]
    record = pd.concat(tables) if tables else EMPTY_RECORD
    return RunData(
        results=read_results(results or folder / EXPR_RESULT_FILE),
        record=record,
        settings=files[0].settings if files else {},
    )


def read_results(path: Path) -> list[dict[str, Any]]:
    """The results of all iterations in order. If a restored run repeated an iteration, its last result counts.

    An incomplete last line is left out.

    Raises:
        ValueError: a row is not JSON; rows are counted from 1.
    """
    lines = path.read_text(encoding="utf-8").rpartition("\n")[0].splitlines() if path.is_file() else []
    by_iteration = {}
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}, row {number}: is not JSON ({error.msg}).") from None
        by_iteration[row[TRAINING_ITERATION]] = row
    return [by_iteration[iteration] for iteration in sorted(by_iteration)]


def _first_and_last_evaluation(files: Sequence[RecordFile]) -> list[RecordFile]:
    """The files without the evaluations between the first and the last one."""
    evaluations = [file for file in files if file.path.stem.startswith(EVALUATION)]
    between = {file.path for file in evaluations[1:-1]}
    return [file for file in files if file.path not in between]


def _rows(file: RecordFile) -> pd.DataFrame:
    table = pq.read_table(file.path, columns=list(COLUMNS)).select(COLUMNS)
    cut = pc.list_slice(table["entropies"], 0, NUM_POSITIONS)
    return table.set_column(COLUMNS.index("entropies"), "entropies", cut).to_pandas()


def stages(run: RunData) -> dict[str, pd.DataFrame]:
    """Stage -> its rows: the first evaluation, the last one and training, as far as the record has them.

    Raises:
        MissingDataError: there is no record.
    """
    evaluations = run.rows(EVALUATION).groupby("iteration")
    found = {name_of_stage(EVALUATION, iteration): rows for iteration, rows in evaluations}
    if len(trained := run.rows(TRAINING)):
        found[_iterations(trained["iteration"].min(), trained["iteration"].max())] = trained
    if not found:
        raise MissingDataError("The run has no record of its trees (record_share=None, or nothing was recorded yet).")
    return found


def _iterations(first: int, last: int) -> str:
    return f"training, iteration {first}" if first == last else f"training, iterations {first} to {last}"
