"""Makes an MLflow run agree with the folder of a trial, as Tune and ARPO write it."""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from mlflow.entities import Metric, Run
from mlflow.tracing.client import TracingClient
from ray.air.constants import TIMESTAMP, TRAINING_ITERATION
from ray.tune.result import EXPR_PARAM_FILE, EXPR_RESULT_FILE

from rllib_arpo.mlflow.flat import flat_metrics, flat_params
from rllib_arpo.mlflow.question_trace import QuestionTrace
from rllib_arpo.mlflow.results import read_results
from rllib_arpo.mlflow.run_facts import RUNNING, read_facts
from rllib_arpo.mlflow.store import Store
from rllib_arpo.record.read import numbered_questions, record_files
from rllib_arpo.record.recorder import RECORD_FOLDER, rank

#: The tag that records what the run has: its last iteration, and the last file of each kind that has traces.
LOGGED_TAG = "rllib_arpo.logged"


class RunLog:
    """Logs a folder again and again, each time only what the run does not have yet.

    Args:
        folder: the trial's folder with its record and `run.json`.
        results: the folder where Tune keeps `result.json` and `params.json` during the run; default: `folder`.
    """

    def __init__(self, folder: Path, store: Store, results: Path | None = None):
        self._folder = folder
        self._results = results or folder
        self._store = store
        self._logged: dict[str, Any] = {}

    def log(self) -> None:
        """Logs what is new; a second call changes nothing.

        Raises:
            Exception: the store or the folder fails.
        """
        facts = read_facts(self._folder)
        run = self._store.run_of(facts.id, facts.name, facts.tags)
        self._logged = json.loads(run.data.tags.get(LOGGED_TAG, "{}"))
        params = self._results / EXPR_PARAM_FILE
        if params.is_file():
            self._store.log_params(run, flat_params(json.loads(params.read_text(encoding="utf-8"))))
        self._log_results(run)
        self._log_status(run, facts.status)
        # Last, since a store may have no traces.
        if facts.traces:
            self._log_traces(run, facts.traces)

    def _log_results(self, run: Run) -> None:
        """Logs new results. It skips an iteration that a restored trial repeated, since MLflow would keep both."""
        known = self._logged.get("iteration", 0)
        new = [one for one in read_results(self._results / EXPR_RESULT_FILE) if one[TRAINING_ITERATION] > known]
        if new:
            self._store.log_metrics(run, _metrics(new))
            self._remember(run, {"iteration": new[-1][TRAINING_ITERATION]})

    def _log_status(self, run: Run, status: str) -> None:
        if run.info.status == status:
            return
        if status == RUNNING:
            self._store.client.update_run(run.info.run_id, status=status)
        else:
            self._store.client.set_terminated(run.info.run_id, status)

    def _log_traces(self, run: Run, limit: int) -> None:
        """Logs traces from the record's new files; as with results, a file that was written again is skipped."""
        last: dict[str, str] = self._logged.get("traces", {})
        for path in sorted((self._folder / RECORD_FOLDER).glob("*.parquet")):
            kind = path.name.partition("-")[0]
            if path.name > last.get(kind, ""):
                log_traces(self._store, run, path, limit)
                last[kind] = path.name
                self._remember(run, {"traces": last})

    def _remember(self, run: Run, logged: Mapping[str, Any]) -> None:
        self._logged |= logged
        self._store.client.set_tag(run.info.run_id, LOGGED_TAG, json.dumps(self._logged))


def log_traces(store: Store, run: Run, path: Path, limit: int) -> None:
    """Logs at most `limit` questions of a record's file, each as a trace of the run.

    Their names decide which, so all evaluations have the same ones. Their ids follow from run, file and question, so a
    second call changes nothing.
    """
    columns = pq.read_table(path, columns=["number", "question_id"]).to_pydict()
    questions = set(zip(columns["question_id"], columns["number"], strict=True))
    numbers = [number for name, number in sorted(questions, key=lambda each: (rank(each[0]), each[1]))[:limit]]
    client = TracingClient(store.uri)
    (file,) = record_files(path)
    for question in numbered_questions(file, numbers):
        trace = QuestionTrace(question, run.info.run_id, path)
        # In this order, so a trace that can be found has its spans.
        client.log_spans(store.experiment, list(trace.spans()))
        client.start_trace(trace.info(store.experiment))


def _metrics(results: Sequence[Mapping[str, Any]]) -> Iterator[Metric]:
    """The metrics of results, with Tune's times: a result that is logged in two attempts keeps one time."""
    for result in results:
        time_ms = int(result.get(TIMESTAMP, 0)) * 1000
        for name, value in flat_metrics(result).items():
            yield Metric(name, value, time_ms, result[TRAINING_ITERATION])
