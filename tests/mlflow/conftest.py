"""Folders of trials as Tune leaves them, and MLflow's stores."""

import json
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from mlflow.entities import Run
from mlflow.tracking import MlflowClient
from pyarrow.fs import LocalFileSystem


@dataclass(eq=False)
class FakeTrial:
    """What the callback reads of a Tune trial; `write` does what Tune does with a result."""

    trial_id: str
    path: str
    config: dict[str, Any] = field(default_factory=lambda: {"lr": 1e-6, "env_config": {"seed": 3}})
    checkpoint: object = None
    trainable_name: str = "ARPO"
    storage: object = field(default_factory=lambda: SimpleNamespace(storage_filesystem=LocalFileSystem()))

    @property
    def local_path(self) -> str:
        return f"{self.path}-staging"

    def __str__(self) -> str:
        return f"ARPO_env_{self.trial_id}"

    def write(self, *results: dict[str, Any]) -> None:
        folder = Path(self.local_path)
        folder.mkdir(parents=True, exist_ok=True)
        if not (folder / "params.json").exists():
            (folder / "params.json").write_text(json.dumps(self.config))
        with (folder / "result.json").open("a") as file:
            file.write("".join(json.dumps(result) + "\n" for result in results))


def result(iteration: int, **more: Any) -> dict[str, Any]:
    metrics = {"env_runners": {"accuracy": iteration / 2}, "learners": {"default_policy": {"kl": -float(iteration)}}}
    return {"training_iteration": iteration, "timestamp": 1000 + iteration, "config": {"lr": 1.0}} | metrics | more


def read_runs(uri: str, experiment: str = "ARPO") -> dict[str, Run]:
    """Name -> run."""
    client = MlflowClient(tracking_uri=uri)
    runs = client.search_runs([client.get_experiment_by_name(experiment).experiment_id])
    return {run.info.run_name: run for run in runs}


def history(uri: str, run: Run, key: str = "env_runners/accuracy") -> list[tuple[int, float]]:
    metrics = MlflowClient(tracking_uri=uri).get_metric_history(run.info.run_id, key)
    return sorted((metric.step, metric.value) for metric in metrics)


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory) -> Path:
    """Creating MLflow's tables takes seconds, so it is done once and the file is copied."""
    database = tmp_path_factory.mktemp("template") / "mlflow.db"
    MlflowClient(tracking_uri=f"sqlite:///{database}").search_experiments()
    return database


@pytest.fixture(autouse=True)
def workspace(tmp_path, monkeypatch) -> Path:
    """A current directory of its own, no MLflow settings from outside, and none left behind."""
    monkeypatch.chdir(tmp_path)
    outside = {name: os.environ.pop(name) for name in list(os.environ) if name.startswith("MLFLOW_")}
    yield tmp_path
    for name in [name for name in os.environ if name.startswith("MLFLOW_")]:
        del os.environ[name]
    os.environ.update(outside)


@pytest.fixture
def trial(workspace) -> FakeTrial:
    return FakeTrial("t1", path=str(workspace / "trial"))


@pytest.fixture
def local_database(workspace, empty_database) -> str:
    """The URI of the store that is used by default, with its tables already made."""
    shutil.copy(empty_database, workspace / "mlflow.db")
    return f"sqlite:///{workspace / 'mlflow.db'}"
