"""The callback on the local store, driven through its Tune hooks and by one real Tune run."""

import copy
import json
import pickle
from pathlib import Path

import pytest
import ray
from mlflow.tracking import MlflowClient
from ray import tune
from ray.tune import Checkpoint, CheckpointConfig

from rllib_arpo.tracking.mlflow_callback import ARPOMLflowCallback
from tests.tracking.conftest import FakeTrial


def result(iteration: int) -> dict:
    return {
        "training_iteration": iteration,
        "env_runners": {"accuracy": iteration / 10, "entropy": {"delta": -0.5 * iteration}},
        "config": {"lr": 1.0},
    }


def read_runs(uri: str, experiment: str = "ARPO") -> dict:
    """trial name -> run, of the only experiment that has runs."""
    client = MlflowClient(tracking_uri=uri)
    runs = client.search_runs([client.get_experiment_by_name(experiment).experiment_id])
    return {run.data.tags["trial_name"]: run for run in runs}


def history(uri: str, run, key: str) -> list[tuple[int, float]]:
    metrics = MlflowClient(tracking_uri=uri).get_metric_history(run.info.run_id, key)
    return sorted((metric.step, metric.value) for metric in metrics)


def test_a_run_in_the_default_store(local_database):
    callback = ARPOMLflowCallback(tags={"purpose": "test"})
    callback.setup()
    trial = FakeTrial("t1")
    callback.log_trial_start(trial)
    for iteration in (1, 2, 3):
        callback.log_trial_result(iteration, trial, result(iteration))
    callback.log_trial_end(trial)

    runs = read_runs(local_database)
    assert list(runs) == ["ARPO_env_t1"]
    run = runs["ARPO_env_t1"]
    assert run.info.status == "FINISHED"
    assert run.info.run_name == "ARPO_env_t1"
    assert run.data.params == {"lr": "1e-06", "env_config/seed": "3"}
    assert run.data.tags["purpose"] == "test"
    assert run.data.tags["ray_version"] == ray.__version__
    assert sorted(run.data.metrics) == ["1 progress/accuracy", "3 entropy and forks/entropy delta"]
    assert history(local_database, run, "1 progress/accuracy") == [(1, 0.1), (2, 0.2), (3, 0.3)]
    assert history(local_database, run, "3 entropy and forks/entropy delta") == [(1, -0.5), (2, -1.0), (3, -1.5)]
    callback.close()


def test_more_params_and_metrics_than_mlflow_takes_at_once(local_database):
    callback = ARPOMLflowCallback()
    callback.setup()
    trial = FakeTrial("t1", config={f"p{i}": i for i in range(250)})
    callback.log_trial_start(trial)
    callback.log_trial_result(1, trial, {"training_iteration": 1, "m": {str(i): i for i in range(1200)}})
    callback.close()
    run = read_runs(local_database)["ARPO_env_t1"]
    assert run.data.params == {f"p{i}": str(i) for i in range(250)}
    assert run.data.metrics == {f"8 other/m/{i}": float(i) for i in range(1200)}


def test_concurrent_trials_have_runs_of_their_own(local_database):
    callback = ARPOMLflowCallback(experiment_name="two")
    callback.setup()
    first, second = FakeTrial("t1"), FakeTrial("t2", config={"lr": 2})
    callback.log_trial_start(first)
    callback.log_trial_start(second)
    callback.log_trial_result(1, second, result(7))
    callback.log_trial_result(1, first, result(1))
    callback.log_trial_end(second, failed=True)
    callback.log_trial_end(first)
    runs = read_runs(local_database, "two")
    assert history(local_database, runs["ARPO_env_t1"], "1 progress/accuracy") == [(1, 0.1)]
    assert history(local_database, runs["ARPO_env_t2"], "1 progress/accuracy") == [(7, 0.7)]
    assert runs["ARPO_env_t1"].info.status == "FINISHED"
    assert runs["ARPO_env_t2"].info.status == "FAILED"
    assert runs["ARPO_env_t2"].data.params == {"lr": "2"}
    callback.close()


def test_a_resumed_experiment_goes_on_in_the_same_run(local_database):
    before = ARPOMLflowCallback()
    before.setup()
    before.log_trial_start(FakeTrial("t1"))
    before.log_trial_result(1, FakeTrial("t1"), result(1))
    before.close()

    after = ARPOMLflowCallback()
    after.set_state(pickle.loads(pickle.dumps(before.get_state())))
    after.setup()
    after.log_trial_start(FakeTrial("t1"))
    after.log_trial_result(2, FakeTrial("t1"), result(2))
    after.log_trial_end(FakeTrial("t1"))
    runs = MlflowClient(tracking_uri=local_database).search_runs(["1"])
    assert len(runs) == 1
    assert history(local_database, runs[0], "1 progress/accuracy") == [(1, 0.1), (2, 0.2)]
    assert runs[0].info.status == "FINISHED"
    after.close()


def test_the_checkpoint_becomes_an_artifact_if_asked(local_database, workspace):
    (workspace / "ckpt").mkdir()
    (workspace / "ckpt" / "weights").write_text("1.5")
    callback = ARPOMLflowCallback(save_artifact=True)
    callback.setup()
    trial = FakeTrial("t1", checkpoint=Checkpoint(str(workspace / "ckpt")))
    callback.log_trial_start(trial)
    callback.log_trial_end(trial)
    run = read_runs(local_database)["ARPO_env_t1"]
    fetched = MlflowClient(tracking_uri=local_database).download_artifacts(run.info.run_id, "checkpoint/weights")
    assert Path(fetched).read_text() == "1.5"
    assert (workspace / "mlruns" / run.info.run_id / "artifacts" / "checkpoint" / "weights").exists()
    callback.close()


def test_where_the_store_is(workspace, empty_database, monkeypatch):
    def chosen(**arguments) -> str:
        callback = ARPOMLflowCallback(**arguments)
        callback.setup()
        callback.close()
        return callback._local_uri

    for name in ("mlflow.db", "env.db", "argument.db"):
        (workspace / name).write_bytes(empty_database.read_bytes())
    (workspace / "folder").mkdir()
    (workspace / "folder" / "mlflow.db").write_bytes(empty_database.read_bytes())
    assert chosen() == f"sqlite:///{workspace}/mlflow.db"
    assert chosen(local_folder="folder") == f"sqlite:///{workspace}/folder/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "sqlite:///env.db")
    assert chosen() == "sqlite:///env.db"
    assert chosen(tracking_uri="sqlite:///argument.db") == "sqlite:///argument.db"


def test_a_local_store_that_cannot_be_opened_is_one_clear_error_before_the_run(workspace):
    (workspace / "text.db").write_text("this is no database, and long enough to be read as the header of one" * 10)
    callback = ARPOMLflowCallback("sqlite:///text.db")
    expected = "MLflow cannot open the local store sqlite:///text.db: DatabaseError: file is not a database"
    with pytest.raises(ValueError, match=expected):
        callback.setup()


def test_the_callback_can_be_copied_before_the_run():
    callback = ARPOMLflowCallback(experiment_name="copied")
    assert copy.deepcopy(callback).experiment_name == "copied"
    assert pickle.loads(ray.cloudpickle.dumps(callback)).experiment_name == "copied"


class Counter(tune.Trainable):
    """Reports its iteration times `factor`."""

    def setup(self, config):
        self.factor = config["factor"]

    def step(self):
        return {"env_runners": {"accuracy": self.factor * (self.iteration + 1)}}

    def save_checkpoint(self, checkpoint_dir):
        (Path(checkpoint_dir) / "state.json").write_text(json.dumps({"factor": self.factor}))

    def load_checkpoint(self, checkpoint):
        pass


def test_two_trials_of_tune(ray_cluster, local_database, workspace):
    tune.run(
        Counter,
        config={"factor": tune.grid_search([1, 10])},
        stop={"training_iteration": 3},
        callbacks=[ARPOMLflowCallback(experiment_name="tune", save_artifact=True)],
        checkpoint_config=CheckpointConfig(checkpoint_at_end=True),
        storage_path=str(workspace / "results"),
        verbose=0,
    )
    runs = {run.data.params["factor"]: run for run in read_runs(local_database, "tune").values()}
    assert {factor: history(local_database, run, "1 progress/accuracy") for factor, run in runs.items()} == {
        "1": [(1, 1.0), (2, 2.0), (3, 3.0)],
        "10": [(1, 10.0), (2, 20.0), (3, 30.0)],
    }
    assert {run.info.status for run in runs.values()} == {"FINISHED"}
    client = MlflowClient(tracking_uri=local_database)
    fetched = client.download_artifacts(runs["10"].info.run_id, "checkpoint/state.json")
    assert json.loads(Path(fetched).read_text()) == {"factor": 10}
