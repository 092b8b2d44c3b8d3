"""Logs the questions of a trial's record to an MLflow store: as traces, and those of evaluations as a table.

The record's files are the only source, so the rollout does nothing for it.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
from mlflow.exceptions import INVALID_PARAMETER_VALUE, MlflowException
from mlflow.store.tracking import SEARCH_TRACES_DEFAULT_MAX_RESULTS
from mlflow.tracing.client import TracingClient
from mlflow.utils.mlflow_tags import MLFLOW_LOGGED_ARTIFACTS

from rllib_arpo.record.recorder import RECORD_FOLDER, rank
from rllib_arpo.show.records import Question, numbered_questions, record_files
from rllib_arpo.tracking.mlflow_records import MlflowStore, Record
from rllib_arpo.tracking.mlflow_traces import FILE, WRITTEN, mlflow_trace
from rllib_arpo.tracking.trace_spans import trajectory_name

if TYPE_CHECKING:
    from ray.tune.experiment import Trial

#: The artifact with the table of evaluated questions, and its columns.
EVALUATIONS_ARTIFACT = "evaluations.json"
EVALUATIONS_COLUMNS = (
    "iteration", "question_id", "trajectory", "prompt", "transcript", "reward", "accuracy", "stop_reason", "tool_calls",
)  # fmt: skip
#: HTTP statuses with which a server says that it cannot take a record now.
_LATER = frozenset({408, 429, 500, 502, 503, 504})


class RecordFolders:
    """Finds the record's files that are new in the trials' folders.

    The record writes in a thread, so a file appears some time after its result. One that is written again, by a trial
    that was restored, is new once more.

    Args:
        limit: the number of questions of each file that are logged; 0: none.
    """

    def __init__(self, limit: int):
        if limit < 0:
            raise ValueError(f"traces={limit}: must be at least 0.")
        self._limit = limit
        self._folders: dict[str, Path] = {}
        self._seen: dict[Path, int] = {}

    def add(self, trial: Trial) -> None:
        """Begins to look into the folder of a trial. Another caller than Tune may give one without a folder."""
        path = getattr(trial, "path", None)
        if path is not None:
            self._folders[trial.trial_id] = Path(path) / RECORD_FOLDER

    def new_records(self, trial_id: str | None = None) -> Iterator[Record]:
        """What is to be logged of the files since the last call, of all trials if none is named.

        Raises:
            OSError: of a trial's folder; the trials before it have given theirs.
        """
        folders = self._folders if trial_id is None else {trial_id: self._folders.get(trial_id)}
        for trial, folder in folders.items():
            if self._limit and folder is not None:
                yield from self._of(trial, folder)

    def _of(self, trial_id: str, folder: Path) -> Iterator[Record]:
        written = {path: path.stat().st_mtime_ns for path in folder.glob("*.parquet")}
        new = sorted((path for path in written if self._seen.get(path) != written[path]), key=written.__getitem__)
        self._seen |= written
        yield from (LogTraces(trial_id, path, self._limit) for path in new)
        if any(path.name.startswith("evaluation-") for path in new):
            yield LogEvaluations(trial_id, folder, self._limit)


@dataclass(frozen=True, slots=True)
class LogTraces:
    """Logs questions of a file of the record, each as a trace of the trial's run.

    The store says which of them it has, so nothing is logged twice, also after a run was killed. If the file was
    written again, its traces are replaced.
    """

    trial_id: str
    path: Path
    limit: int

    def apply(self, store: MlflowStore) -> None:
        with _refused_unless_down():
            self._apply(store, TracingClient(store.uri), store.run_id(self.trial_id))

    def _apply(self, store: MlflowStore, client: TracingClient, run_id: str) -> None:
        written = self.path.stat().st_mtime_ns
        numbers = chosen_numbers(self.path, self.limit)
        logged = store.client.search_traces(
            locations=[store.experiment],
            filter_string=f"attribute.run_id = '{run_id}' AND metadata.{FILE} = '{self.path.name}'",
            include_spans=False,
            max_results=max(len(numbers), SEARCH_TRACES_DEFAULT_MAX_RESULTS),
        )
        if sum(trace.info.trace_metadata[WRITTEN] == str(written) for trace in logged) >= len(numbers):
            return
        if logged:
            store.client.delete_traces(store.experiment, trace_ids=[trace.info.trace_id for trace in logged])
        (file,) = record_files(self.path)
        for question in numbered_questions(file, numbers):
            info, spans = mlflow_trace(question, store.experiment, run_id, self.path.name, written)
            # In this order: a trace that can be found has its spans.
            client.log_spans(store.experiment, spans)
            client.start_trace(info)


@dataclass(frozen=True, slots=True)
class LogEvaluations:
    """Writes the table of the evaluated questions, those that are traced, into the run's artifacts."""

    trial_id: str
    folder: Path
    limit: int

    def apply(self, store: MlflowStore) -> None:
        with _refused_unless_down():
            run_id = store.run_id(self.trial_id)
            table = {"columns": EVALUATIONS_COLUMNS, "data": [list(row.values()) for row in self._rows()]}
            store.client.log_dict(run_id, table, EVALUATIONS_ARTIFACT)
            tables = json.loads(store.client.get_run(run_id).data.tags.get(MLFLOW_LOGGED_ARTIFACTS, "[]"))
            # Where MLflow looks for the tables of a run.
            own = {"path": EVALUATIONS_ARTIFACT, "type": "table"}
            if own not in tables:
                store.client.set_tag(run_id, MLFLOW_LOGGED_ARTIFACTS, json.dumps([*tables, own]))

    def _rows(self) -> Iterator[dict[str, Any]]:
        for path in sorted(self.folder.glob("evaluation-*.parquet")):
            (file,) = record_files(path)
            for question in numbered_questions(file, chosen_numbers(path, self.limit)):
                yield from evaluation_rows(question)


def chosen_numbers(path: Path, limit: int) -> list[int]:
    """The numbers of at most `limit` questions of a file, chosen by their names: the same ones in every evaluation."""
    columns = pq.read_table(path, columns=["number", "question_id"]).to_pydict()
    questions = set(zip(columns["question_id"], columns["number"], strict=True))
    return [number for name, number in sorted(questions, key=lambda each: (rank(each[0]), each[1]))[:limit]]


def evaluation_rows(question: Question) -> Iterator[dict[str, Any]]:
    """The rows of a question in the table, one for each of its trajectories, with the columns `EVALUATIONS_COLUMNS`."""
    for trajectory in question.trajectories:
        path = question.path(trajectory)
        texts = [text for turn in path for text in (turn["text"], turn["tool_output"]) if text is not None]
        values = (
            question.row["iteration"],
            question.row["question_id"],
            trajectory_name(trajectory),
            question.row["prompt"],
            "".join(texts),
            *(trajectory.row[name] for name in ("reward", "accuracy", "stop_reason")),
            sum(turn["tool"] is not None for turn in path),
        )
        yield dict(zip(EVALUATIONS_COLUMNS, values, strict=True))


@contextmanager
def _refused_unless_down() -> Iterator[None]:
    """Turns all errors but those of a store that is down for a while into a refusal (HTTP status 400).

    The writer reports a refused record and goes on; otherwise a server without traces, or one whose artifacts cannot be
    written from here, would never get the metrics behind them.
    """
    try:
        yield
    # As in the writer: the stores behind MLflow raise errors of a dozen libraries.
    except Exception as error:
        if isinstance(error, MlflowException) and error.get_http_status_code() in _LATER:
            raise
        raise MlflowException(str(error), INVALID_PARAMETER_VALUE) from error
