"""Opens an MLflow store (a sqlite file, a folder or a server), and finds the run of a folder in it."""

import os
import sqlite3
from collections.abc import Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlparse

from mlflow.entities import Metric, Param, Run
from mlflow.tracking import MlflowClient

from rllib_arpo.redaction import without_secrets

#: This tag identifies the run of a folder.
FOLDER_TAG = "rllib_arpo.folder"
#: With MLflow's defaults (7 retries of 120 s) a request can take many minutes.
HTTP_LIMITS = {"MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0", "MLFLOW_HTTP_REQUEST_TIMEOUT": "5"}
#: MLflow's filters have no escapes, so the tag encodes the characters that would end a quoted text.
_QUOTABLE = str.maketrans({"'": "%27", "\\": "%5C"})
DEFAULT_EXPERIMENT = "ARPO"
_SQLITE = "sqlite:///"


@dataclass(frozen=True, slots=True)
class Store:
    """An open MLflow store; `experiment` is the id of the experiment for the runs."""

    uri: str
    client: MlflowClient
    experiment: str

    def run_of(self, folder_id: str, name: str, tags: Mapping[str, str]) -> Run:
        """The run of a folder. If there is none, it makes one with these tags."""
        folder_id = folder_id.translate(_QUOTABLE)
        known = self.client.search_runs([self.experiment], f"tags.`{FOLDER_TAG}` = '{folder_id}'", max_results=1)
        if known:
            return known[0]
        return self.client.create_run(self.experiment, tags={**tags, FOLDER_TAG: folder_id}, run_name=name)

    def log_params(self, run: Run, params: Mapping[str, str]) -> None:
        """Logs the params that the run does not have yet; MLflow lets no param change."""
        missing = [Param(key, value) for key, value in params.items() if key not in run.data.params]
        self.client.log_batch(run.info.run_id, params=missing, synchronous=True)

    def log_metrics(self, run: Run, metrics: Iterable[Metric]) -> None:
        self.client.log_batch(run.info.run_id, metrics=list(metrics), synchronous=True)


def store_uri(uri: str | None = None) -> str:
    """`uri`, or the environment variable MLFLOW_TRACKING_URI, or the URI of `mlflow.db` in the current folder."""
    return uri or os.environ.get("MLFLOW_TRACKING_URI") or f"{_SQLITE}{Path.cwd() / 'mlflow.db'}"


def is_local(uri: str) -> bool:
    return urlparse(uri).scheme in ("", "file", "sqlite")


def open_store(uri: str | None = None, experiment: str | None = None) -> Store:
    """Opens the store and finds or creates the experiment.

    Args:
        uri: default: `store_uri()`; the default file keeps its artifacts in `mlruns` beside it.
        experiment: default: MLFLOW_EXPERIMENT_NAME, MLFLOW_EXPERIMENT_ID (except for the default file), "ARPO".

    Raises:
        ValueError: a local store cannot be opened, or has deleted the experiment.
        Exception: a server does not answer, or refuses.
    """
    for name, value in HTTP_LIMITS.items():
        os.environ.setdefault(name, value)
    chosen = store_uri(uri)
    is_default = not (uri or os.environ.get("MLFLOW_TRACKING_URI"))
    artifacts = (Path.cwd() / "mlruns").as_uri() if is_default else None
    try:
        if chosen.startswith(_SQLITE):
            _check_sqlite(Path(chosen.removeprefix(_SQLITE)))
        client = MlflowClient(tracking_uri=chosen)
        return Store(chosen, client, _experiment(client, experiment, artifacts))
    except Exception as error:
        if is_local(chosen):
            raise ValueError(
                f"MLflow cannot open the local store {without_secrets(chosen)}: {one_line(error)}"
            ) from error
        raise


def one_line(error: BaseException) -> str:
    """The innermost cause of an error, such as "ConnectionRefusedError: ...", which MLflow wraps several times."""
    while (cause := error.__cause__ or (None if error.__suppress_context__ else error.__context__)) is not None:
        error = cause
    return f"{type(error).__name__}: {without_secrets(' '.join(str(error).split()))}"[:300]


def _check_sqlite(path: Path) -> None:
    """Fails at once where MLflow would wait for minutes: for a file that cannot be read, or has no folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with closing(sqlite3.connect(path)) as connection:
        connection.execute("PRAGMA schema_version")


def _experiment(client: MlflowClient, name: str | None, artifacts: str | None) -> str:
    """The id of the experiment. A new one keeps its artifacts in `artifacts`; None leaves that to MLflow."""
    name = name or os.environ.get("MLFLOW_EXPERIMENT_NAME")
    own_id = os.environ.get("MLFLOW_EXPERIMENT_ID")
    if name is None and own_id and artifacts is None:
        return client.get_experiment(own_id).experiment_id
    found = client.get_experiment_by_name(name or DEFAULT_EXPERIMENT)
    if found is None:
        return client.create_experiment(name or DEFAULT_EXPERIMENT, artifact_location=artifacts)
    if found.lifecycle_stage != "active":
        raise ValueError(f"the experiment {found.name!r} was deleted; restore it, or name another one")
    return found.experiment_id
