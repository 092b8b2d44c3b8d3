"""One experiment under Ray Tune: two trials by name, their seeds, evaluations, MLflow runs, pages and traces."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from mlflow.tracking import MlflowClient
from ray import tune
from ray.air.integrations.mlflow import MLflowLoggerCallback

from rllib_arpo.commands import main
from rllib_arpo.learner.metrics import NUM_ALARMS, UPDATE_METRICS
from rllib_arpo.mlflow.callback import ARPOMLflowCallback
from rllib_arpo.mlflow.flat import flat_metrics
from rllib_arpo.record.read import questions, record_files
from rllib_arpo.rollout.metric_table import BATCH_METRICS, ROLLOUT_METRICS, TOOL_METRICS
from rllib_arpo.rollout.seeds import trial_seed
from rllib_arpo.tracking.before_training import EvaluateBeforeTraining
from tests.helpers.configs import small_config
from tests.helpers.faulty_env import FaultyEnv
from tests.helpers.other_python import free_port

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

#: Seconds that MLflow's server may need to start.
PATIENCE_S = 300.0
RATES = [1e-3, 1e-4]

#: A declared metric that this run does not have: without a reference.
NOT_HERE = {"learners/default_policy/kl"}


@pytest.fixture(scope="module")
def workspace(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("tune")


@pytest.fixture(scope="module")
def results(ray_cluster, model_folder, workspace) -> tune.ResultGrid:
    """Two trials, one after the other; the first fails once in its second iteration and goes on from its checkpoint."""
    tune.register_env("Faulty-v0", FaultyEnv)
    marker = workspace / "failed"

    def fail_once(*, algorithm, **_kwargs):
        if algorithm.iteration == 2 and not marker.exists():
            marker.touch()
            raise RuntimeError("once")

    config = small_config(model_folder, vocab_size=256, seed=5, replies=[[7, 1], [8, 9, 1], [9, 1], [7, 2], [8, 8, 2]])
    config.environment("Faulty-v0", env_config={"rewards": {"0": 1.0}}).reporting(record_share=1.0).debugging(seed=None)
    config.adaptive_rollout(num_rollouts=8, num_initial_rollouts=4, record_entropies="all")
    config.evaluation(evaluation_interval=1, evaluation_config={"env_config": {}})
    config.callbacks(EvaluateBeforeTraining, on_train_result=fail_once)
    found = tune.Tuner(
        "ARPO",
        param_space=config.training(lr=tune.grid_search(RATES)),
        run_config=tune.RunConfig(
            name="two",
            storage_path=str(workspace),
            stop={"training_iteration": 2},
            verbose=0,
            failure_config=tune.FailureConfig(max_failures=1),
            checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=1),
            callbacks=[
                MLflowLoggerCallback(tracking_uri=f"sqlite:///{workspace}/rays.db", experiment_name="two"),
                ARPOMLflowCallback(f"sqlite:///{workspace}/ours.db", experiment_name="two"),
            ],
        ),
        tune_config=tune.TuneConfig(max_concurrent_trials=1),
    ).fit()
    assert marker.exists()
    assert not found.errors
    return found


def logged_runs(uri: str) -> list:
    """The experiment's MLflow runs, those of `RATES` in their order."""
    client = MlflowClient(uri)
    runs = client.search_runs([client.get_experiment_by_name("two").experiment_id])
    return sorted(runs, key=lambda run: -float(run.data.params["lr"]))


def test_each_trial_has_its_own_configuration(results):
    last = [result.metrics for result in results]
    assert [result["config"]["lr"] for result in last] == RATES
    rates = [result["learners"]["default_policy"]["default_optimizer_learning_rate"] for result in last]
    assert rates == pytest.approx(RATES)
    assert [result["env_runners"]["num_episodes_lifetime"] for result in last] == [4, 4]


def test_trials_of_one_experiment_differ_and_keep_their_seeds(results):
    seeds = [list(result.metrics_dataframe["config/seed"]) for result in results]
    assert seeds == [[trial_seed(f"two/{Path(result.path).name}")] * 2 for result in results]
    assert seeds[0] != seeds[1]


def test_rays_mlflow_callback_logs_the_trials(results, workspace):
    runs = logged_runs(f"sqlite:///{workspace}/rays.db")
    assert [run.data.params["lr"] for run in runs] == ["0.001", "0.0001"]
    assert [run.data.metrics["env_runners/num_episodes"] for run in runs] == [2, 2]


def test_evaluations_are_recorded_before_the_first_iteration_and_after_each(results):
    files = [file for file in record_files(results[0].path) if file.path.name.startswith("evaluation")]
    assert [file.path.name for file in files] == [f"evaluation-{i:05d}.parquet" for i in range(3)]
    turns = [placed.turn for file in files for question in questions(file) for placed in question.turns()]
    assert turns and all(len(turn.entropies) == len(turn.token_ids) <= 24 for turn in turns)


def test_an_mlflow_run_is_whole(results, workspace):
    uri, folder = f"sqlite:///{workspace}/ours.db", Path(results[1].path)
    run = logged_runs(uri)[1]
    check_metrics(run.data.metrics, folder)
    assert run.data.tags["folder"] == str(folder)

    # Its pages come from the folder.
    assert main(["show", str(folder), "--output", str(workspace / "pages")]) == 0


def check_metrics(metrics: dict[str, float], folder: Path) -> None:
    """Every metric that is declared is there under its path, with the number of Tune's last result."""
    last = json.loads((folder / "result.json").read_text().splitlines()[-1])
    found = flat_metrics(last)
    assert {name: metrics[name] for name in found} == pytest.approx(found, nan_ok=True)
    tools = {f"env_runners/tools/tool/{metric.name}" for metric in TOOL_METRICS}
    rollout = {f"env_runners/{metric.name}" for metric in (*ROLLOUT_METRICS, *BATCH_METRICS)}
    update = {f"learners/default_policy/{metric.name}" for metric in (*UPDATE_METRICS, NUM_ALARMS)}
    assert tools | rollout | update <= metrics.keys() | NOT_HERE
    assert metrics["evaluation/env_runners/accuracy"] == last["evaluation"]["env_runners"]["accuracy"]
    assert metrics["env_runners/entropy/delta"] == last["env_runners"]["entropy"]["delta"]


@pytest.fixture(scope="module")
def mlflow_server(tmp_path_factory) -> Iterator[str]:
    """The URI of `mlflow server`, which may still be starting."""
    folder = tmp_path_factory.mktemp("server")
    port = free_port()
    command = [
        *(sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"),
        *("--backend-store-uri", f"sqlite:///{folder / 'mlflow.db'}"),
        *("--artifacts-destination", str(folder / "artifacts")),
    ]
    without = {name: value for name, value in os.environ.items() if not name.startswith("MLFLOW_")}
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            command,
            cwd=folder,
            env=without | {"MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false", "MLFLOW_DISABLE_TELEMETRY": "true"},
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    yield f"http://127.0.0.1:{port}"
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def wait_for(uri: str) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while True:
        try:
            httpx.get(f"{uri}/health").raise_for_status()
            return
        except httpx.TransportError:
            assert time.monotonic() < deadline
            time.sleep(0.1)


def test_a_server_gets_every_question_of_a_run(mlflow_server, results):
    """Of a run that `rllib-arpo log-run` brings to another store."""
    wait_for(mlflow_server)
    folder = results[1].path
    assert main(["log-run", folder, "--store", mlflow_server, "--experiment", "traces"]) == 0
    client = MlflowClient(tracking_uri=mlflow_server)
    experiment = client.get_experiment_by_name("traces").experiment_id
    [logged] = client.search_runs([experiment])
    recorded = [question for file in record_files(folder) for question in questions(file)]
    traces = client.search_traces(locations=[experiment], run_id=logged.info.run_id)
    assert len(recorded) == 2 * 2 + 3 * 3
    assert all(trace.data.spans for trace in traces)
    names = [tuple(trace.info.tags[name] for name in ("purpose", "iteration", "mlflow.traceName")) for trace in traces]
    assert sorted(names) == sorted((q.facts.purpose, str(q.facts.iteration), q.tree.question_id) for q in recorded)
