"""One MLflow store (a sqlite file or a server), and the records that can be applied to it.

A record is made on the training loop, where it costs microseconds, and applied by a `StoreWriter`'s thread. Applying
one twice is harmless, so a record that failed half-way is simply applied again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Protocol
from urllib.parse import urlparse

from mlflow.entities import Metric, Param
from mlflow.exceptions import MlflowException
from mlflow.tracking import MlflowClient
from mlflow.utils.credentials import get_default_host_creds
from mlflow.utils.rest_utils import http_request
from ray.tune import Checkpoint

from rllib_arpo.tracking.mlflow_values import MAX_METRICS_PER_BATCH, MAX_PARAMS_PER_BATCH

#: The artifact folder of a run that holds the Algorithm's checkpoint.
CHECKPOINT_ARTIFACT = "checkpoint"

SQLITE_PREFIX = "sqlite:///"


@dataclass(slots=True)
class MlflowStore:
    """An MLflow tracking store. Used by one thread only.

    Attributes:
        uri: its tracking URI.
        experiment_name: the experiment that gets the runs; created if it does not exist.
        experiment_id: instead of the name, an experiment that exists.
        registry_uri: passed on to MLflow.
        artifact_location: of a newly created experiment; None leaves it to MLflow.
        run_ids: trial id -> MLflow run id, of the runs that exist in this store.
        client, experiment: set when the store has been opened.
    """

    uri: str
    experiment_name: str
    experiment_id: str | None = None
    registry_uri: str | None = None
    artifact_location: str | None = None
    run_ids: dict[str, str] = field(default_factory=dict)
    client: MlflowClient | None = None
    experiment: str | None = None

    @property
    def is_http(self) -> bool:
        return urlparse(self.uri).scheme in ("http", "https")

    def run_id(self, trial_id: str) -> str:
        return self.run_ids[trial_id]


class Record(Protocol):
    """A record to log. `apply` raises the store's errors."""

    def apply(self, store: MlflowStore) -> None: ...


@dataclass(frozen=True, slots=True)
class OpenStore:
    """Probes a server (`probe_timeout_s` per socket operation), makes the client and finds or creates the experiment.

    MLflow waits for minutes for a sqlite file whose folder is missing, so the folder is created.
    """

    probe_timeout_s: float

    def apply(self, store: MlflowStore) -> None:
        if store.is_http:
            self._probe(store.uri)
        if store.uri.startswith(SQLITE_PREFIX):
            Path(store.uri.removeprefix(SQLITE_PREFIX)).parent.mkdir(parents=True, exist_ok=True)
        client = MlflowClient(tracking_uri=store.uri, registry_uri=store.registry_uri)
        store.experiment = _find_or_create_experiment(client, store)
        store.client = client

    def _probe(self, uri: str) -> None:
        """GET /health with MLflow's own credentials and TLS settings; any answer below 500 comes from a live server."""
        answer = http_request(
            get_default_host_creds(uri), "/health", "GET", max_retries=0, timeout=self.probe_timeout_s, retry_codes=()
        )
        if answer.status_code >= 500:
            raise ConnectionError(f"/health answered with HTTP status {answer.status_code}")


@dataclass(frozen=True, slots=True)
class StartRun:
    """Creates a trial's run, or goes on with the one that it already has. `start_time` is in ms since the epoch."""

    trial_id: str
    name: str
    tags: dict[str, str]
    start_time: int

    def apply(self, store: MlflowStore) -> None:
        if self.trial_id in store.run_ids and self._go_on(store):
            return
        run = store.client.create_run(store.experiment, self.start_time, tags=self.tags, run_name=self.name)
        store.run_ids[self.trial_id] = run.info.run_id

    def _go_on(self, store: MlflowStore) -> bool:
        """Whether the known run still exists; it is set to running again."""
        try:
            store.client.update_run(store.run_id(self.trial_id), status="RUNNING")
        except MlflowException as error:
            if error.error_code != "RESOURCE_DOES_NOT_EXIST":
                raise
            return False
        return True


@dataclass(frozen=True, slots=True)
class LogParams:
    """Logs the params that the run does not have yet, since MLflow never lets a param change."""

    trial_id: str
    params: dict[str, str]

    def apply(self, store: MlflowStore) -> None:
        run_id = store.run_id(self.trial_id)
        known = store.client.get_run(run_id).data.params
        missing = [Param(key, value) for key, value in self.params.items() if key not in known]
        for batch in _batches(missing, MAX_PARAMS_PER_BATCH):
            store.client.log_batch(run_id, params=batch, synchronous=True)


@dataclass(frozen=True, slots=True)
class LogMetrics:
    """Logs one result. `timestamp` is in ms since the epoch."""

    trial_id: str
    metrics: dict[str, float]
    step: int
    timestamp: int

    def apply(self, store: MlflowStore) -> None:
        metrics = [Metric(key, value, self.timestamp, self.step) for key, value in self.metrics.items()]
        for batch in _batches(metrics, MAX_METRICS_PER_BATCH):
            store.client.log_batch(store.run_id(self.trial_id), metrics=batch, synchronous=True)


@dataclass(frozen=True, slots=True)
class LogCheckpoint:
    """Copies a checkpoint into the run's artifacts."""

    trial_id: str
    checkpoint: Checkpoint

    def apply(self, store: MlflowStore) -> None:
        with self.checkpoint.as_directory() as folder:
            store.client.log_artifacts(store.run_id(self.trial_id), folder, CHECKPOINT_ARTIFACT)


@dataclass(frozen=True, slots=True)
class EndRun:
    """Ends a run with a status of MLflow ("FINISHED", "FAILED"). `end_time` is in ms since the epoch."""

    trial_id: str
    status: str
    end_time: int

    def apply(self, store: MlflowStore) -> None:
        store.client.set_terminated(store.run_id(self.trial_id), self.status, self.end_time)


def _find_or_create_experiment(client: MlflowClient, store: MlflowStore) -> str:
    if store.experiment_id is not None:
        return client.get_experiment(store.experiment_id).experiment_id
    experiment = client.get_experiment_by_name(store.experiment_name)
    if experiment is None:
        return client.create_experiment(store.experiment_name, artifact_location=store.artifact_location)
    if experiment.lifecycle_stage != "active":
        raise ValueError(f"experiment {store.experiment_name!r} is deleted there: restore it or name another one")
    return experiment.experiment_id


def _batches(items: Sequence, size: int) -> Iterator[list]:
    iterator = iter(items)
    while batch := list(islice(iterator, size)):
        yield batch
