"""The Tune callback that logs ARPO runs to MLflow and never holds up training."""

import atexit
import logging
import threading
import uuid
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import Any

from pyarrow.fs import LocalFileSystem
from ray.tune.experiment import Trial
from ray.tune.logger import LoggerCallback

from rllib_arpo.mlflow.run_facts import (
    FAILED,
    FINISHED,
    KILLED,
    NOTE_TAG,
    RUN_FILE,
    RUNNING,
    RunFacts,
    command_line,
    description,
    read_facts,
    run_tags,
    write_facts,
)
from rllib_arpo.mlflow.run_log import RunLog
from rllib_arpo.mlflow.store import Store, is_local, one_line, open_store, store_uri
from rllib_arpo.redaction import without_secrets
from rllib_arpo.tracking.machine import commit

logger = logging.getLogger(__name__)

#: Seconds that the end of a run waits: for a store that still takes data, and for a store that has just failed.
CLOSE_S, MAX_DELAY_S = 600.0, 15.0
#: Seconds that an interrupted run waits for any store.
INTERRUPT_S = 3.0
#: Seconds before the only retry of a failed call: a connection that the server closed while it was idle fails once.
SECOND_TRY_S = 0.5

#: The trial's folder, and the folder in which Tune keeps its results during the run.
Folders = tuple[Path, Path]


class ARPOMLflowCallback(LoggerCallback):
    """Logs each trial as an MLflow run: params, metrics, tags, plots and trees.

    After every result a thread makes the run agree with the trial's folder (`run_log`), so training never waits for the
    store. If the store fails, the thread tries again after the next result and at the end. Nothing is lost even then,
    since the folder has everything: `rllib-arpo log-run FOLDER --store URI` logs it later. Steps are training
    iterations. A resumed trial continues its MLflow run if its folder is on a local disk.

    The store is `tracking_uri`, or the environment variable MLFLOW_TRACKING_URI, or `mlflow.db` in the current folder
    with its artifacts in `mlruns`.

    Args:
        tracking_uri: an MLflow tracking URI.
        experiment_name: default: MLFLOW_EXPERIMENT_NAME, MLFLOW_EXPERIMENT_ID (for the user's own store), "ARPO".
        tags: every run gets these tags.
        report: draw plots and trees at the end of the run; log them as the artifacts "plots" and "trees".
        traces: how many questions to log as traces from each file of the trial's record (docs/watch.md), which has an
            iteration's recorded questions or an evaluation; always the same questions of an evaluation. 0: none.

    Raises (in `setup`, before any trial starts):
        ValueError: the local store cannot be opened.
    """

    def __init__(
        self,
        tracking_uri: str | None = None,
        *,
        experiment_name: str | None = None,
        tags: dict[str, str] | None = None,
        report: bool = True,
        traces: int = 8,
    ):
        if traces < 0:
            raise ValueError(f"traces={traces}: must be at least 0.")
        self.tracking_uri = tracking_uri
        self.experiment_name = experiment_name
        self.tags = tags or {}
        self.report = report
        self.traces = traces
        self._thread: LogThread | None = None

    def setup(self, *args: Any, **kwargs: Any) -> None:
        """Opens a local store; the thread connects to a server later."""
        uri = store_uri(self.tracking_uri)
        if is_local(uri):
            self._open()
        self._all_tags = run_tags() | self.tags
        self._commit = commit()
        self._started: dict[str, Folders] = {}
        self._changed: set[str] = set()
        self._thread = LogThread(self._open, uri)
        atexit.register(self.close)

    def log_trial_start(self, trial: Trial) -> None:
        folder, results = _folders(trial)
        self._started[trial.trial_id] = folder, results
        self._changed.add(trial.trial_id)
        is_known = (folder / RUN_FILE).is_file()
        write_facts(folder, self._facts(trial, read_facts(folder).id if is_known else uuid.uuid4().hex))

    def log_trial_result(self, iteration: int, trial: Trial, result: dict[str, Any]) -> None:
        self._changed.add(trial.trial_id)

    def log_trial_end(self, trial: Trial, failed: bool = False) -> None:
        if trial.trial_id not in self._started:  # it failed before it started
            self.log_trial_start(trial)
        folder, _ = self._started[trial.trial_id]
        write_facts(folder, replace(read_facts(folder), status=FAILED if failed else FINISHED))
        self._changed.add(trial.trial_id)

    def on_step_end(self, iteration: int, trials: list[Trial], **info: Any) -> None:
        """Wakes the thread, now that Tune has written the results that the callback has seen."""
        if self._thread is not None and self._changed:
            self._thread.log([self._started[name] for name in self._changed])
            self._changed.clear()

    def on_experiment_end(self, trials: list[Trial], **info: Any) -> None:
        self.close()

    def interrupt(self) -> None:
        """Marks the runs of unfinished trials as KILLED, and waits at most `INTERRUPT_S` for the store."""
        if self._thread is not None:
            for folder, _ in self._started.values():
                if (facts := read_facts(folder)).status == RUNNING:
                    write_facts(folder, replace(facts, status=KILLED))
            self.close(INTERRUPT_S)

    def close(self, timeout_s: float = CLOSE_S) -> None:
        """Logs what is still missing, and stops after this time."""
        if self._thread is not None:
            self._thread.close(self._started.values(), timeout_s)
            self._thread = None
            atexit.unregister(self.close)

    def _open(self) -> Store:
        return open_store(self.tracking_uri, self.experiment_name)

    def _facts(self, trial: Trial, folder_id: str) -> RunFacts:
        note = description(trial.trainable_name, trial.config, command_line(), self._commit, trial.path)
        tags = ({NOTE_TAG: note} if note else {}) | self._all_tags | {"trial_name": str(trial)}
        return RunFacts(
            id=folder_id,
            name=str(trial),
            tags=tags,
            experiment=self.experiment_name,
            report=self.report,
            traces=self.traces,
        )


class LogThread:
    """Makes MLflow runs agree with their folders, in its own thread.

    Args:
        open_store: the thread calls it until it succeeds.
        uri: the store's name in the warning, which appears once.
    """

    def __init__(self, open_store: Callable[[], Store], uri: str):
        self._open_store = open_store
        self._uri = without_secrets(uri)
        self._store: Store | None = None
        self._logs: dict[Folders, RunLog] = {}
        self._due: set[Folders] = set()
        self._changed = threading.Condition()
        self._ending = threading.Event()
        self._failing = self._has_warned = False
        # A daemon, so a hanging request does not keep the process alive.
        self._thread = threading.Thread(target=self._work, name="mlflow", daemon=True)
        self._thread.start()

    def log(self, runs: Collection[Folders]) -> None:
        """Logs these runs as soon as the thread is free."""
        with self._changed:
            self._due |= set(runs)
            self._changed.notify_all()

    def close(self, runs: Collection[Folders], timeout_s: float) -> None:
        """Logs these runs a last time, within `timeout_s`, or `MAX_DELAY_S` if the store is failing."""
        with self._changed:
            self._due |= set(runs)
            self._ending.set()
            self._changed.notify_all()
        timeout_s = min(MAX_DELAY_S, timeout_s) if self._failing else timeout_s
        self._thread.join(timeout_s)
        if self._thread.is_alive() and runs:
            self._warn(next(iter(runs))[0], TimeoutError(f"not finished in {timeout_s:.0f} s"))

    def _work(self) -> None:
        failed: set[Folders] = set()
        is_last = False
        while not is_last:
            with self._changed:
                self._changed.wait_for(lambda: self._due or self._ending.is_set())
                is_last = self._ending.is_set()
                due, self._due = self._due | failed, set()
            failed = {run for run in sorted(due) if not self._log(run)}

    def _log(self, run: Folders) -> bool:
        """Logs a run; returns whether the store now has all of it."""
        error = self._try(run)
        if error is not None and not self._failing and not self._ending.wait(SECOND_TRY_S):
            error = self._try(run)
        self._failing = error is not None
        if error is not None:
            self._warn(run[0], error)
        return error is None

    def _try(self, run: Folders) -> Exception | None:
        # The stores behind MLflow raise errors of requests, urllib3, SQLAlchemy, boto3 and the file system. All of
        # them mean "not logged yet".
        try:
            if self._store is None:
                self._store = self._open_store()
            if run not in self._logs:
                self._logs[run] = RunLog(run[0], self._store, run[1])
            self._logs[run].log()
        except Exception as error:
            return error
        return None

    def _warn(self, folder: Path, error: Exception) -> None:
        if not self._has_warned:
            self._has_warned = True
            logger.warning(
                "MLflow at %s did not take all of the run (%s). If no later attempt succeeds, log it with "
                "`rllib-arpo log-run %s --store %s`.",
                self._uri,
                one_line(error),
                folder,
                self._uri,
            )


def _folders(trial: Trial) -> Folders:
    is_on_disk = isinstance(trial.storage.storage_filesystem, LocalFileSystem)
    results = Path(trial.local_path)
    return Path(trial.path) if is_on_disk else results, results
