"""A tracking server that is healthy, dead, mute, stopped in mid-run: training is not held up and nothing is lost."""

import logging
import os
import socket
import time
from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient
from ray.tune import Checkpoint

from rllib_arpo.tracking import mlflow_callback
from rllib_arpo.tracking.mlflow_callback import ARPOMLflowCallback
from tests.tracking.conftest import FakeTrial

ITERATIONS = 6
#: What the local store (or the server) must hold of a whole run.
WHOLE_RUN = {
    "status": "FINISHED",
    "params": {"lr": "1e-06", "env_config/seed": "3"},
    "accuracy": [(1, 0.5), (2, 1.0), (3, 1.5), (4, 2.0), (5, 2.5), (6, 3.0)],
    "kl": [(1, -1.0), (2, -2.0), (3, -3.0), (4, -4.0), (5, -5.0), (6, -6.0)],
}


def read_whole_run(uri: str, experiment: str) -> dict:
    client = MlflowClient(tracking_uri=uri)
    (run,) = client.search_runs([client.get_experiment_by_name(experiment).experiment_id])

    def history(key):
        return sorted((metric.step, metric.value) for metric in client.get_metric_history(run.info.run_id, key))

    return {
        "status": run.info.status,
        "params": run.data.params,
        "accuracy": history("1 progress/accuracy"),
        "kl": history("5 learner/kl"),
    }


class TimedRun:
    """Drives the callback through a run and adds up the seconds that its hooks take."""

    def __init__(self, callback: ARPOMLflowCallback, checkpoint: Checkpoint | None = None):
        self.callback = callback
        self.trial = FakeTrial("t1", checkpoint=checkpoint)
        self.seconds = 0.0
        self._timed(callback.setup)
        self.setup_seconds = self.seconds
        self._timed(callback.log_trial_start, self.trial)

    def iterations(self, first: int, last: int) -> None:
        for i in range(first, last + 1):
            metrics = {"env_runners": {"accuracy": i / 2}, "learners": {"default_policy": {"kl": -float(i)}}}
            self._timed(self.callback.log_trial_result, i, self.trial, {"training_iteration": i} | metrics)

    def end(self) -> None:
        self._timed(self.callback.log_trial_end, self.trial)
        self._timed(self.callback.on_experiment_end, [self.trial])

    def _timed(self, hook, *arguments) -> None:
        started = time.monotonic()
        hook(*arguments)
        self.seconds += time.monotonic() - started


def messages(caplog) -> list[str]:
    """Everything that reaches the user, from whichever library."""
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


def wait_until(condition, seconds: float = 10.0) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.fixture
def dead_uri() -> str:
    """A port of this machine at which nobody listens."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        return f"http://127.0.0.1:{closed.getsockname()[1]}"


@pytest.fixture
def mute_uri() -> str:
    """A port that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as mute:
        yield f"http://127.0.0.1:{mute.getsockname()[1]}"


def test_a_healthy_server_and_the_local_store_hold_the_same_run(server, local_database, caplog):
    run = TimedRun(ARPOMLflowCallback(server.uri, experiment_name="healthy"))
    run.iterations(1, ITERATIONS)
    run.end()
    assert read_whole_run(server.uri, "healthy") == WHOLE_RUN
    assert read_whole_run(local_database, "healthy") == WHOLE_RUN
    assert messages(caplog) == []


def test_the_server_of_the_environment_is_used(server, local_database, monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", server.uri)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "from the environment")
    run = TimedRun(ARPOMLflowCallback())
    run.iterations(1, ITERATIONS)
    run.end()
    assert read_whole_run(server.uri, "from the environment") == WHOLE_RUN


def test_mlflows_own_retries_are_limited_unless_the_user_set_them(dead_uri, local_database, monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "9")
    TimedRun(ARPOMLflowCallback(dead_uri)).end()
    assert os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"] == "9"
    assert os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"] == "0"


def test_a_dead_server_at_the_start(dead_uri, local_database, caplog):
    run = TimedRun(ARPOMLflowCallback(dead_uri, experiment_name="dead"))
    run.iterations(1, ITERATIONS)
    run.end()
    assert run.seconds < 5
    assert read_whole_run(local_database, "dead") == WHOLE_RUN
    assert messages(caplog) == [
        f"The MLflow server {dead_uri} does not accept records "
        f"(ConnectionRefusedError: [Errno 111] Connection refused); the whole run is in {local_database}."
    ]


def test_a_mute_server_at_the_start(mute_uri, local_database, caplog):
    run = TimedRun(ARPOMLflowCallback(mute_uri, experiment_name="mute"))
    assert 4.9 < run.setup_seconds < 7
    run.iterations(1, ITERATIONS)
    run.end()
    assert run.seconds < 8
    assert read_whole_run(local_database, "mute") == WHOLE_RUN
    assert messages(caplog) == [
        f"The MLflow server {mute_uri} does not accept records "
        f"(TimeoutError: no answer within 5 s); the whole run is in {local_database}."
    ]


def test_a_server_stopped_in_mid_run(server, local_database, workspace, caplog):
    (workspace / "ckpt").mkdir()
    (workspace / "ckpt" / "weights").write_text("1.5")
    callback = ARPOMLflowCallback(server.uri, experiment_name="stopped", save_artifact=True)
    run = TimedRun(callback, Checkpoint(str(workspace / "ckpt")))
    run.iterations(1, 2)
    wait_until(lambda: not callback._server.pending)
    server.stop()
    run.iterations(3, ITERATIONS)
    run.end()
    assert run.seconds < 5
    assert read_whole_run(local_database, "stopped") == WHOLE_RUN
    (message,) = messages(caplog)
    assert message.startswith(f"The MLflow server {server.uri} does not accept records (ConnectionRefusedError")

    client = MlflowClient(tracking_uri=local_database)
    (local_run,) = client.search_runs([client.get_experiment_by_name("stopped").experiment_id])
    fetched = client.download_artifacts(local_run.info.run_id, "checkpoint/weights")
    assert Path(fetched).read_text() == "1.5"

    server.start_again()
    client = MlflowClient(tracking_uri=server.uri)
    (server_run,) = client.search_runs([client.get_experiment_by_name("stopped").experiment_id])
    assert server_run.data.metrics["1 progress/accuracy"] == 1.0


def test_a_server_that_stops_answering_in_mid_run(server, local_database, caplog):
    callback = ARPOMLflowCallback(server.uri, experiment_name="hanging")
    run = TimedRun(callback)
    run.iterations(1, 2)
    wait_until(lambda: not callback._server.pending)
    server.hang()
    run.iterations(3, ITERATIONS)
    run.end()
    assert run.seconds < 15
    assert read_whole_run(local_database, "hanging") == WHOLE_RUN
    assert len(messages(caplog)) == 1


def test_a_server_that_comes_back_gets_what_it_missed(server, local_database, monkeypatch, caplog):
    monkeypatch.setattr(mlflow_callback, "SERVER_RETRY_S", 0.2)
    callback = ARPOMLflowCallback(server.uri, experiment_name="back")
    run = TimedRun(callback)
    run.iterations(1, 2)
    server.stop()
    run.iterations(3, 4)
    wait_until(lambda: messages(caplog))
    server.start_again()
    run.iterations(5, ITERATIONS)
    wait_until(lambda: not callback._server.pending)
    run.end()
    assert read_whole_run(server.uri, "back") == WHOLE_RUN
    assert len(messages(caplog)) == 1


def test_a_checkpoint_goes_to_the_server(server, local_database, workspace):
    (workspace / "ckpt").mkdir()
    (workspace / "ckpt" / "weights").write_text("2.5")
    callback = ARPOMLflowCallback(server.uri, experiment_name="artifact", save_artifact=True)
    TimedRun(callback, Checkpoint(str(workspace / "ckpt"))).end()
    client = MlflowClient(tracking_uri=server.uri)
    (run,) = client.search_runs([client.get_experiment_by_name("artifact").experiment_id])
    fetched = client.download_artifacts(run.info.run_id, "checkpoint/weights")
    assert Path(fetched).read_text() == "2.5"
    assert not (workspace / "mlruns").exists()
