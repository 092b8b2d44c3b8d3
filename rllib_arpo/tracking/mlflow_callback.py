"""The Tune callback that logs ARPO runs to MLflow without ever holding up training."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from ray.air.constants import TRAINING_ITERATION
from ray.air.integrations.mlflow import MLflowLoggerCallback
from ray.rllib.utils.metrics import EVALUATION_RESULTS
from ray.tune.experiment import Trial

from rllib_arpo.tracking.machine import commit
from rllib_arpo.tracking.metric_groups import metric_name
from rllib_arpo.tracking.mlflow_records import (
    EndRun,
    LogCheckpoint,
    LogMetrics,
    LogParams,
    MlflowStore,
    OpenStore,
    Record,
    StartRun,
)
from rllib_arpo.tracking.mlflow_report import LogReport, RunReport
from rllib_arpo.tracking.mlflow_values import flat_metrics, flat_params, run_tags
from rllib_arpo.tracking.mlflow_writer import StoreWriter
from rllib_arpo.tracking.recorded_questions import LogTraces, RecordFolders
from rllib_arpo.tracking.run_description import NOTE_TAG, command_line, description

logger = logging.getLogger(__name__)

#: Seconds that an unreachable server may cost a run in total: the probe before it and the last flush after it.
MAX_DELAY_S = 15.0
PROBE_S = 5.0
#: Seconds for the local store, a file: as long as a slow disk may need.
LOCAL_PATIENCE_S = 120.0
SERVER_RETRY_S = 15.0
LOCAL_RETRY_S = 1.0

#: MLflow's own defaults (7 retries, 120 s each) keep one request for minutes; the writer tries again by itself.
HTTP_LIMITS = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0", "MLFLOW_HTTP_REQUEST_TIMEOUT": "5"}

DEFAULT_EXPERIMENT = "ARPO"


class ARPOMLflowCallback(MLflowLoggerCallback):
    """Logs params, metrics, tags, plots, trees and, if asked, the last checkpoint of every trial, as one MLflow run.

    Everything is written to a local store, and also to the server if there is one. Each store has its own thread, so
    the training loop only fills queues. Records that a server does not take are not lost, since the local store has the
    whole run, and a server that comes back gets the records that it missed. Steps are training iterations.

    The URI is `tracking_uri`, or the environment variable MLFLOW_TRACKING_URI, or that of a sqlite file. A server
    (http, https, databricks, a database server) is probed before the run for at most 5 seconds; at the end of the run
    it gets the rest of 15 seconds to take the remaining records (`artifact_timeout_s` if it is taking them and a
    checkpoint or traces are among them).

    Args:
        tracking_uri: an MLflow tracking URI; a local one (sqlite, file) is the only store.
        local_folder: where `mlflow.db` and the artifacts (`mlruns`) of the local store lie; default: the current one.
        registry_uri, tags, tracking_token, log_params_on_trial_end: as in Ray's `MLflowLoggerCallback`.
        experiment_name: default: MLFLOW_EXPERIMENT_NAME, MLFLOW_EXPERIMENT_ID (of the user's store), "ARPO".
        save_artifact: log the trial's last checkpoint as the artifact "checkpoint": to the server, to the local store
            if there is none or it does not take it.
        artifact_timeout_s: how long the end of the run may wait for a server that is taking a checkpoint
            or traces.
        all_metrics: also log RLlib's own timers and throughputs (`metric_groups.LEFT_OUT`).
        report: draw the run's plots after every evaluation and at its end, and its trees at its end, and log them as
            the artifacts "plots" and "trees".
        traces: of each file of the trial's record (docs/record.md), that is, of an iteration's recorded questions and
            of an evaluation, this many questions are logged as traces, the same ones of each evaluation; those of
            evaluations also as the table "evaluations.json". 0: none. Without a record there are none.

    Raises (in `setup`, before any trial starts):
        ValueError: the local store cannot be opened.
    """

    def __init__(
        self,
        tracking_uri: str | None = None,
        *,
        local_folder: str | Path | None = None,
        registry_uri: str | None = None,
        experiment_name: str | None = None,
        tags: dict[str, str] | None = None,
        tracking_token: str | None = None,
        save_artifact: bool = False,
        log_params_on_trial_end: bool = False,
        artifact_timeout_s: float = 600.0,
        all_metrics: bool = False,
        report: bool = True,
        traces: int = 8,
    ):
        super().__init__(
            tracking_uri,
            registry_uri=registry_uri,
            experiment_name=experiment_name,
            tags=tags,
            tracking_token=tracking_token,
            save_artifact=save_artifact,
            log_params_on_trial_end=log_params_on_trial_end,
        )
        self.local_folder = local_folder
        self.artifact_timeout_s = artifact_timeout_s
        self.all_metrics = all_metrics
        self.report = report
        self._record_folders = RecordFolders(traces)
        self._local: StoreWriter | None = None
        self._server: StoreWriter | None = None
        self._known_runs: dict[str, dict[str, str]] = {}

    def setup(self, *args: Any, **kwargs: Any) -> None:
        """Opens the stores; at most 5 seconds are spent on a server that does not answer."""
        if self.tracking_token:
            os.environ["MLFLOW_TRACKING_TOKEN"] = self.tracking_token
        self._running: set[str] = set()
        self._reports: dict[str, RunReport] = {}
        self._last_iterations: dict[str, int] = {}
        self._said_of_report = threading.Lock()
        self._patience_s = MAX_DELAY_S
        self._said = threading.Lock()
        self._local_error: Exception | None = None
        self._all_tags = run_tags() | (self.tags or {})
        self._commit = commit()
        uri = self.tracking_uri or os.environ.get("MLFLOW_TRACKING_URI")
        self._server_uri = uri if uri and not _is_local(uri) else None
        self._local_uri = uri if uri and _is_local(uri) else self._default_uri()
        self._local = self._writer(self._local_uri, uri == self._local_uri, LOCAL_RETRY_S, self._say_local)
        if self._server_uri is not None:
            for name, value in HTTP_LIMITS.items():
                os.environ.setdefault(name, value)
            self._server = self._writer(self._server_uri, True, SERVER_RETRY_S, self._say_once)
        self._wait_until_open()
        atexit.register(self.close)

    def log_trial_start(self, trial: Trial) -> None:
        self._running.add(trial.trial_id)
        note = self.note_of(trial)
        tags = ({NOTE_TAG: note} if note else {}) | self._all_tags | {"trial_name": str(trial)}
        self._submit(StartRun(trial.trial_id, str(trial), tags, _now_ms()))
        if not self.log_params_on_trial_end:
            self._submit(LogParams(trial.trial_id, flat_params(trial.config)))
        self._record_folders.add(trial)

    def log_trial_result(self, iteration: int, trial: Trial, result: dict) -> None:
        iteration = self._last_iterations[trial.trial_id] = result[TRAINING_ITERATION]
        self._submit(LogMetrics(trial.trial_id, self.metrics_of(result), iteration, _now_ms()))
        if EVALUATION_RESULTS in result:
            self._submit_report(trial)
        self._submit_traces(trial.trial_id)

    def log_trial_end(self, trial: Trial, failed: bool = False) -> None:
        if trial.trial_id not in self._running:  # it failed before it started
            self.log_trial_start(trial)
        if self.log_params_on_trial_end:
            self._submit(LogParams(trial.trial_id, flat_params(trial.config)))
        if self.should_save_artifact:
            self._submit_checkpoint(trial)
        self._submit(EndRun(trial.trial_id, "FAILED" if failed else "FINISHED", _now_ms()))
        self._submit_report(trial, with_trees=True)
        self._reports.pop(trial.trial_id, None)
        self._running.discard(trial.trial_id)
        if not self._running:
            self._flush_local()

    def metrics_of(self, result: dict) -> dict[str, float]:
        """The metrics of a result under the names of `metric_groups`."""
        return flat_metrics(result, partial(metric_name, all_metrics=self.all_metrics))

    def note_of(self, trial: Trial) -> str | None:
        """The run's description; None for a trial that does not train by ARPO."""
        return description(trial.trainable_name, trial.config, command_line(), self._commit, trial.path)

    def on_experiment_end(self, trials: list[Trial], **info: Any) -> None:
        self.close()

    def close(self) -> None:
        """Writes the pending records: all of them to the local store, and to the server as many as it takes in time."""
        if self._local is None:
            return
        self._submit_traces()  # The trials have ended, and their last files are written.
        if self._server is not None:
            self._finish_server(self._server)
        self._flush_local()
        self._known_runs = self._run_ids()
        self._local.stop()
        self._local = self._server = None
        atexit.unregister(self.close)

    def get_state(self) -> dict | None:
        """The MLflow run of every trial, so that a resumed experiment goes on in the same runs."""
        return {"runs": self._run_ids()}

    def set_state(self, state: dict) -> None:
        self._known_runs = state["runs"]

    def _default_uri(self) -> str:
        return f"sqlite:///{Path(self.local_folder or '.').resolve() / 'mlflow.db'}"

    def _writer(self, uri: str, is_users: bool, retry_s: float, report: Callable[[Exception], None]) -> StoreWriter:
        """Starts a writer. MLFLOW_EXPERIMENT_ID names an experiment of the user's own store, not of our default one."""
        name = self.experiment_name or os.environ.get("MLFLOW_EXPERIMENT_NAME")
        store = MlflowStore(
            uri,
            experiment_name=name or DEFAULT_EXPERIMENT,
            experiment_id=os.environ.get("MLFLOW_EXPERIMENT_ID") if is_users and name is None else None,
            registry_uri=self.registry_uri,
            artifact_location=None if is_users else (Path(self.local_folder or ".").resolve() / "mlruns").as_uri(),
            run_ids=dict(self._known_runs.get(uri, {})),
        )
        writer = StoreWriter(store, retry_s, report)
        writer.submit(OpenStore(PROBE_S))
        return writer

    def _wait_until_open(self) -> None:
        started = time.monotonic()
        if self._server is not None and not self._server.flush(PROBE_S):
            self._say_once(TimeoutError(f"no answer within {PROBE_S:.0f} s"))
        self._patience_s -= time.monotonic() - started
        if not self._local.flush(LOCAL_PATIENCE_S):
            for writer in (self._local, self._server):
                if writer is not None:
                    writer.stop()
            raise ValueError(f"MLflow cannot open the local store {self._local_uri}: {_one_line(self._local_error)}")

    def _submit(self, record: Record) -> None:
        self._local.submit(record)
        if self._server is not None:
            self._server.submit(record)

    def _submit_report(self, trial: Trial, with_trees: bool = False) -> None:
        iteration = self._last_iterations.get(trial.trial_id)
        if not self.report or iteration is None or trial.local_path is None:
            return
        if trial.trial_id not in self._reports:
            report = RunReport(Path(trial.local_path), Path(trial.path), self._say_of_report)
            self._reports[trial.trial_id] = report
        self._reports[trial.trial_id].newest = iteration
        self._submit(LogReport(trial.trial_id, self._reports[trial.trial_id], iteration, with_trees))

    def _submit_traces(self, trial_id: str | None = None) -> None:
        try:
            for record in self._record_folders.new_records(trial_id):
                self._submit(record)
        except OSError as error:  # The next call looks again.
            self._say_of_report(error)

    def _submit_checkpoint(self, trial: Trial) -> None:
        if trial.checkpoint is None:
            logger.warning("Trial %s has no checkpoint to save: set `checkpoint_at_end=True` in Tune.", trial)
            return
        (self._server or self._local).submit(LogCheckpoint(trial.trial_id, trial.checkpoint))

    def _finish_server(self, server: StoreWriter) -> None:
        """Waits for the server within the time left; a checkpoint that it does not take goes to the local store."""
        if server.store.client is not None:  # otherwise it has never answered
            uploads = any(isinstance(record, LogCheckpoint | LogTraces | LogReport) for record in server.pending)
            server.flush(self.artifact_timeout_s if uploads else self._patience_s)
        left = server.stop()
        if left:
            self._say_once(TimeoutError(f"{len(left)} records were not taken in time"))
        for record in left:
            if isinstance(record, LogCheckpoint):
                self._local.submit(record)

    def _flush_local(self) -> None:
        if not self._local.flush(LOCAL_PATIENCE_S, while_failing=True):
            logger.error("%d MLflow records could not be written.", len(self._local.pending))

    def _run_ids(self) -> dict[str, dict[str, str]]:
        writers = [writer for writer in (self._local, self._server) if writer is not None]
        return self._known_runs | {writer.store.uri: dict(writer.store.run_ids) for writer in writers}

    def _say_once(self, error: Exception) -> None:
        """Warns once: the lock is never released, so only the first caller of any thread warns."""
        if self._said.acquire(blocking=False):
            logger.warning(
                "The MLflow server %s does not accept records (%s); the whole run is in %s.",
                self._server_uri,
                _one_line(error),
                self._local_uri,
            )

    def _say_of_report(self, error: Exception) -> None:
        """Warns once, as `_say_once` does."""
        if self._said_of_report.acquire(blocking=False):
            logger.warning("Plots, trees or traces of the run are missing in MLflow (%s).", _one_line(error))

    def _say_local(self, error: Exception) -> None:
        self._local_error = error
        if self._local.store.client is None:  # not open yet: `setup` raises
            return
        logger.error("The MLflow store %s cannot be written: %s", self._local_uri, _one_line(error))


def _is_local(uri: str) -> bool:
    return urlparse(uri).scheme in ("", "file", "sqlite")


def _now_ms() -> int:
    return int(time.time() * 1000)


def _one_line(error: BaseException) -> str:
    """The innermost cause: "ConnectionRefusedError: ..." says more than the five errors that wrap it."""
    while (cause := error.__cause__ or (None if error.__suppress_context__ else error.__context__)) is not None:
        error = cause
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]
