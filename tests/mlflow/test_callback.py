"""The callback and a store that is healthy, dead, mute or stopped in mid-run: nothing is lost."""

import copy
import logging
import os
import pickle
import shutil
import socket
from pathlib import Path

import pytest
import ray

from rllib_arpo.commands import main
from rllib_arpo.mlflow.callback import ARPOMLflowCallback
from rllib_arpo.mlflow.run_log import RunLog
from tests.helpers.other_python import free_port
from tests.mlflow.conftest import FakeTrial, history, read_runs, result

ITERATIONS = 6
#: What MLflow must have of a whole run.
WHOLE_RUN = {
    "status": "FINISHED",
    "params": {"lr": "1e-06", "env_config/seed": "3"},
    "accuracy": [(1, 0.5), (2, 1.0), (3, 1.5), (4, 2.0), (5, 2.5), (6, 3.0)],
}


def read_whole_run(uri: str, experiment: str) -> dict:
    (run,) = read_runs(uri, experiment).values()
    return {"status": run.info.status, "params": run.data.params, "accuracy": history(uri, run)}


class DrivenRun:
    """Drives the callback as Tune does."""

    def __init__(self, callback: ARPOMLflowCallback, trial: FakeTrial):
        self.callback, self.trial = callback, trial
        callback.setup()
        callback.log_trial_start(trial)

    def iterations(self, first: int, last: int) -> None:
        for i in range(first, last + 1):
            self.callback.log_trial_result(i, self.trial, result(i))
            self.trial.write(result(i))
            self.callback.on_step_end(i, [self.trial])

    def end(self) -> None:
        self.callback.log_trial_end(self.trial)
        self.callback.on_step_end(ITERATIONS, [self.trial])
        self.callback.on_experiment_end([self.trial])


def messages(caplog) -> list[str]:
    """Everything that reaches the user, from whichever library."""
    return [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]


@pytest.fixture
def dead_uri() -> str:
    """A port of this machine at which nobody listens."""
    return f"http://127.0.0.1:{free_port()}"


@pytest.fixture
def mute_uri() -> str:
    """A port that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as mute:
        yield f"http://127.0.0.1:{mute.getsockname()[1]}"


def test_concurrent_trials_have_runs_of_their_own_in_the_default_store(local_database, workspace):
    callback = ARPOMLflowCallback(experiment_name="two", tags={"purpose": "test"})
    callback.setup()
    first, second = (FakeTrial(name, str(workspace / name), config={"lr": name}) for name in ("t1", "t2"))
    for trial, iteration in ((first, 1), (second, 7)):
        callback.log_trial_start(trial)
        trial.write(result(iteration))
    callback.on_step_end(1, [first, second])
    callback.log_trial_end(second, failed=True)
    callback.log_trial_end(first)
    callback.on_experiment_end([first, second])
    runs = read_runs(local_database, "two")
    assert {name: (run.info.status, run.data.params, run.data.metrics["env_runners/accuracy"])
            for name, run in runs.items()} == {
        "ARPO_env_t1": ("FINISHED", {"lr": "t1"}, 0.5),
        "ARPO_env_t2": ("FAILED", {"lr": "t2"}, 3.5),
    }  # fmt: skip
    tags = runs["ARPO_env_t1"].data.tags
    assert (tags["purpose"], tags["ray_version"]) == ("test", ray.__version__)
    assert {"hostname", "mlflow.user", "mlflow.source.name"} <= tags.keys()


@pytest.mark.parametrize("by_tune", [True, False])
def test_a_resumed_trial_goes_on_in_the_same_run_of_the_store_of_the_environment(
    workspace, empty_database, trial, monkeypatch, caplog, by_tune
):
    """After Ctrl-C, Tune ends the experiment, or raises and a recipe calls `interrupt`."""
    uri = f"sqlite:///{shutil.copy(empty_database, workspace / 'own.db')}"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", uri)
    monkeypatch.setenv("MLFLOW_EXPERIMENT_NAME", "from the environment")
    before = DrivenRun(ARPOMLflowCallback(), trial)
    before.iterations(1, 2)
    before.callback.on_experiment_end([trial]) if by_tune else before.callback.interrupt()
    interrupted = read_whole_run(uri, "from the environment")
    assert (interrupted["status"], interrupted["accuracy"]) == ("KILLED", WHOLE_RUN["accuracy"][:2])
    after = DrivenRun(ARPOMLflowCallback(), trial)
    after.iterations(3, ITERATIONS)
    after.end()
    assert read_whole_run(uri, "from the environment") == WHOLE_RUN
    assert messages(caplog) == []


@pytest.mark.parametrize("kind", ["dead_uri", "mute_uri"])
def test_a_server_that_is_not_there(kind, request, trial, caplog, local_database, capsys, monkeypatch):
    monkeypatch.setenv("MLFLOW_HTTP_REQUEST_TIMEOUT", "1")  # A user's own limit stays.
    uri = request.getfixturevalue(kind)
    run = DrivenRun(ARPOMLflowCallback(uri, experiment_name="missed"), trial)
    run.iterations(1, ITERATIONS)
    run.end()
    assert (os.environ["MLFLOW_HTTP_REQUEST_TIMEOUT"], os.environ["MLFLOW_HTTP_REQUEST_MAX_RETRIES"]) == ("1", "0")
    (message,) = messages(caplog)
    assert message.startswith(f"MLflow at {uri} did not take all of the run (")
    assert message.endswith(
        f"). If no later attempt succeeds, log it with `rllib-arpo log-run {trial.path} --store {uri}`."
    )
    # Tune copies the results to the trial's folder.
    for name in ("params.json", "result.json"):
        (Path(trial.path) / name).write_bytes((Path(trial.local_path) / name).read_bytes())
    assert main(["log-run", trial.path, "--store", local_database]) == 0
    assert read_whole_run(local_database, "missed") == WHOLE_RUN


def test_a_store_that_comes_back_gets_what_it_missed(local_database, trial, caplog, monkeypatch):
    log, is_down = RunLog.log, [True]

    def fails_while_down(run: RunLog) -> None:
        if is_down:
            raise ConnectionError("closed")
        log(run)

    monkeypatch.setattr(RunLog, "log", fails_while_down)
    run = DrivenRun(ARPOMLflowCallback(experiment_name="back"), trial)
    run.iterations(1, 4)
    is_down.clear()
    run.iterations(5, ITERATIONS)
    run.end()
    assert read_whole_run(local_database, "back") == WHOLE_RUN
    assert len(messages(caplog)) == 1


def test_what_is_wrong_before_the_run_is_one_clear_error(workspace):
    (workspace / "text.db").write_text("this is no database, and long enough to be read as the header of one" * 10)
    expected = "MLflow cannot open the local store sqlite:///text.db: DatabaseError: file is not a database"
    with pytest.raises(ValueError, match=expected):
        ARPOMLflowCallback("sqlite:///text.db").setup()
    with pytest.raises(ValueError, match=r"^traces=-1: must be at least 0\.$"):
        ARPOMLflowCallback(traces=-1)


def test_the_callback_can_be_copied_before_the_run():
    callback = ARPOMLflowCallback(experiment_name="copied")
    assert copy.deepcopy(callback).experiment_name == "copied"
    assert pickle.loads(ray.cloudpickle.dumps(callback)).experiment_name == "copied"
