"""The Tune callback that logs ARPO runs to MLflow."""

import logging
import uuid
from collections.abc import Collection
from contextlib import suppress
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
    RUN_FILE,
    RUNNING,
    RunFacts,
    read_facts,
    run_tags,
    write_facts,
)
from rllib_arpo.mlflow.run_log import RunLog
from rllib_arpo.mlflow.store import Store, is_local, one_line, open_store, store_uri
from rllib_arpo.redaction import without_secrets

logger = logging.getLogger(__name__)

#: The trial's folder, and the folder in which Tune keeps its results during the run.
Folders = tuple[Path, Path]


class ARPOMLflowCallback(LoggerCallback):
    """Logs each trial as an MLflow run: params, metrics, tags, and questions as traces.

    After every result, while the trial's next iteration runs, it makes the MLflow run agree with the trial's folder
    (`run_log`). If the store fails, it tries again after the next result and at the end. Nothing is lost even then,
    since the folder has everything: `rllib-arpo log-run FOLDER --store URI` logs it later. Steps are training
    iterations. A resumed trial continues its MLflow run if its folder is on a local disk.

    The store is `tracking_uri`, or the environment variable MLFLOW_TRACKING_URI, or `mlflow.db` in the current folder
    with its artifacts in `mlruns`.

    Args:
        tracking_uri: an MLflow tracking URI.
        experiment_name: default: MLFLOW_EXPERIMENT_NAME, MLFLOW_EXPERIMENT_ID (for the user's own store), "ARPO".
        tags: every run gets these tags.
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
        traces: int = 8,
    ):
        if traces < 0:
            raise ValueError(f"traces={traces}: must be at least 0.")
        self.tracking_uri = tracking_uri
        self.experiment_name = experiment_name
        self.tags = tags or {}
        self.traces = traces
        self._started: dict[str, Folders] = {}
        self._changed: set[str] = set()
        self._failed: set[str] = set()

    def setup(self, *args: Any, **kwargs: Any) -> None:
        """Opens a local store; a server is contacted with the first result."""
        uri = store_uri(self.tracking_uri)
        self._uri = without_secrets(uri)
        self._store = self._open() if is_local(uri) else None
        self._all_tags = run_tags() | self.tags
        self._logs: dict[str, RunLog] = {}
        self._has_warned = False

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
        """Logs new results, now that Tune has written them and has begun the next iteration."""
        if self._changed:
            changed, self._changed = self._changed | self._failed, set()
            self._failed = self._log(changed)

    def on_experiment_end(self, trials: list[Trial], **info: Any) -> None:
        # After Ctrl-C, a stopper of all trials or `fail_fast`, Tune ends trials without a word.
        self.interrupt()

    def interrupt(self) -> None:
        """Marks the runs of unfinished trials as KILLED, and logs what is missing."""
        for folder, _ in self._started.values():
            with suppress(OSError):  # The user has deleted it; logging will say so.
                if (facts := read_facts(folder)).status == RUNNING:
                    write_facts(folder, replace(facts, status=KILLED))
        self._log(self._started)

    def _log(self, names: Collection[str]) -> set[str]:
        """Logs these trials; returns those that the store does not have whole."""
        # It tries twice: a connection that the server closed while it was idle fails once.
        errors = self._try(self._try(names))
        for name, error in errors.items():
            self._warn(self._started[name][0], error)
        return set(errors)

    def _try(self, names: Collection[str]) -> dict[str, Exception]:
        """Trial -> why it could not be logged."""
        errors: dict[str, Exception] = {}
        for name in sorted(names):
            folder, results = self._started[name]
            # The stores behind MLflow raise errors of requests, urllib3, SQLAlchemy, boto3 and the file system. All of
            # them mean "not logged yet".
            try:
                self._store = self._store or self._open()
                if name not in self._logs:
                    self._logs[name] = RunLog(folder, self._store, results)
                self._logs[name].log()
            except Exception as error:
                errors[name] = error
        return errors

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

    def _open(self) -> Store:
        return open_store(self.tracking_uri, self.experiment_name)

    def _facts(self, trial: Trial, folder_id: str) -> RunFacts:
        tags = self._all_tags | {"trial_name": str(trial), "folder": without_secrets(trial.path)}
        return RunFacts(folder_id, str(trial), tags, experiment=self.experiment_name, traces=self.traces)


def _folders(trial: Trial) -> Folders:
    is_on_disk = isinstance(trial.storage.storage_filesystem, LocalFileSystem)
    results = Path(trial.local_path)
    return Path(trial.path) if is_on_disk else results, results
