"""Plots as artifacts: drawn once for all stores, and never the end of a run."""

import json
import logging
from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient

from rllib_arpo.plots import gallery
from rllib_arpo.tracking import mlflow_report
from rllib_arpo.tracking.mlflow_callback import ARPOMLflowCallback
from rllib_arpo.tracking.mlflow_report import RunReport
from tests.tracking.conftest import FakeTrial


def result(iteration: int, evaluated: bool) -> dict:
    """As Tune writes it."""
    metrics = {"env_runners": {"accuracy": 0.5, "episode_return_mean": 0.25}, "config": {"record_share": 0.05}}
    evaluation = {"evaluation": {"env_runners": {"accuracy": 1.0}}} if evaluated else {}
    return {"training_iteration": iteration} | metrics | evaluation


@pytest.fixture
def trial(workspace) -> FakeTrial:
    """Tune writes its results into "staging"; no record lies in "trial"."""
    (workspace / "staging").mkdir()
    return FakeTrial("t1", path=str(workspace / "trial"), local_path=str(workspace / "staging"))


def write_results(trial: FakeTrial, *results: dict) -> None:
    Path(trial.local_path, "result.json").write_text("".join(json.dumps(row) + "\n" for row in results))


def artifacts(uri: str, folder: str) -> list[str]:
    client = MlflowClient(tracking_uri=uri)
    (run,) = client.search_runs([client.get_experiment_by_name("ARPO").experiment_id])
    return [info.path for info in client.list_artifacts(run.info.run_id, folder)]


def test_plots_are_logged_after_an_evaluation_and_at_the_end(local_database, server, trial, monkeypatch):
    drawings = []
    draw_all = gallery.draw_all
    monkeypatch.setattr(gallery, "draw_all", lambda run: drawings.append(len(run.results)) or draw_all(run))
    callback = ARPOMLflowCallback(server.uri)
    callback.setup()
    callback.log_trial_start(trial)
    write_results(trial, result(1, evaluated=False))
    callback.log_trial_result(1, trial, result(1, evaluated=False))
    assert callback._local.flush(20) and callback._server.flush(20)
    assert artifacts(local_database, "plots") == []
    write_results(trial, result(1, evaluated=False), result(2, evaluated=True))
    callback.log_trial_result(2, trial, result(2, evaluated=True))
    assert callback._local.flush(20) and callback._server.flush(20)
    for uri in (local_database, server.uri):
        assert artifacts(uri, "plots") == ["plots/accuracy.png", "plots/plots.html"]
    callback.log_trial_end(trial)
    callback.close()
    # Once for both stores, and not again at the end, when nothing is new.
    assert drawings == [2]


def test_a_run_without_reports(local_database, trial):
    callback = ARPOMLflowCallback(report=False)
    callback.setup()
    callback.log_trial_start(trial)
    callback.log_trial_result(1, trial, result(1, evaluated=True))
    callback.log_trial_end(trial)
    callback.close()
    assert artifacts(local_database, "plots") == []


def test_what_cannot_be_drawn_is_one_warning(local_database, trial, monkeypatch, caplog):
    monkeypatch.setattr(mlflow_report, "PATIENCE_S", 0.0)
    Path(trial.local_path, "result.json").write_text("nothing\n")
    callback = ARPOMLflowCallback()
    callback.setup()
    callback.log_trial_start(trial)
    with caplog.at_level(logging.WARNING):
        for iteration in (1, 2):
            callback.log_trial_result(iteration, trial, result(iteration, evaluated=True))
        callback.log_trial_end(trial)
        callback.close()
    assert [record.getMessage() for record in caplog.records] == [
        "Plots, trees or traces of the run are missing in MLflow "
        f"(ValueError: {trial.local_path}/result.json, row 1: is not JSON (Expecting value).)."
    ]
    client = MlflowClient(tracking_uri=local_database)
    (run,) = client.search_runs(["1"])
    assert (run.info.status, run.data.metrics["1 progress/accuracy"]) == ("FINISHED", 0.5)


def test_the_drawing_waits_for_the_last_result(trial, monkeypatch):
    """The callback hears of a result before Tune writes it."""
    monkeypatch.setattr(mlflow_report, "LOOK_AGAIN_S", 0.0)
    looks = []

    def sleep(_seconds: float) -> None:
        looks.append(True)
        if len(looks) == 3:
            write_results(trial, result(1, evaluated=False))

    monkeypatch.setattr("time.sleep", sleep)
    report = RunReport(Path(trial.local_path), Path(trial.path), pytest.fail)
    assert sorted(report.files(1, with_trees=True)) == ["plots/accuracy.png", "plots/plots.html"]
    assert len(looks) == 3
