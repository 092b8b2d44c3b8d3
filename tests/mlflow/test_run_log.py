"""An MLflow run agrees with the folder of its trial, and a second call changes nothing."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from mlflow.tracking import MlflowClient
from pyarrow.lib import ArrowInvalid

from rllib_arpo.commands import main
from rllib_arpo.mlflow.run_facts import FAILED, FINISHED, RunFacts, write_facts
from rllib_arpo.mlflow.run_log import RunLog
from rllib_arpo.mlflow.store import open_store
from tests.mlflow.conftest import history, read_runs, result

FACTS = RunFacts("id1", "a run", {"purpose": "test"})


@pytest.fixture
def folder(workspace) -> Path:
    """Of a trial that has ended after two results."""
    folder = workspace / "trial"
    write_facts(folder, replace(FACTS, status=FINISHED))
    (folder / "params.json").write_text(json.dumps({"lr": 1e-6, "env_config": {"seed": 3}}))
    add(folder, result(1), result(2, evaluation={"env_runners": {"accuracy": 1.0}}))
    return folder


def add(folder: Path, *results: dict, end: str = "\n") -> None:
    with (folder / "result.json").open("a") as file:
        file.write("".join(json.dumps(row) + "\n" for row in results).rstrip("\n") + end)


def test_a_second_call_changes_nothing(folder, local_database, monkeypatch):
    RunLog(folder, open_store()).log()
    before = read_runs(local_database)
    batches = []
    monkeypatch.setattr(MlflowClient, "log_batch", lambda *_args, **batch: batches.append(batch))
    RunLog(folder, open_store()).log()
    assert batches == [{"params": [], "synchronous": True}]
    after = read_runs(local_database)
    assert {name: run.to_dictionary() for name, run in after.items()} == {
        name: run.to_dictionary() for name, run in before.items()
    }


def test_a_folder_with_quotes_in_its_id_is_found_again(workspace, local_database):
    store, ids = open_store(), ["/o'brien", "/obrien", "/\"o'", "/o\\"]
    runs = [[store.run_of(id_, id_, {}).info.run_id for id_ in ids] for _ in range(2)]
    assert runs[0] == runs[1] and len(set(runs[0])) == 4


def test_a_result_that_is_being_written_waits(folder, local_database):
    write_facts(folder, FACTS)
    log = RunLog(folder, open_store())
    log.log()
    add(folder, result(3), end="")
    log.log()
    run = read_runs(local_database)["a run"]
    assert history(local_database, run) == [(1, 0.5), (2, 1.0)]
    content = (folder / "result.json").read_text()
    add(folder, result(4))  # The end of the line of result 3, which is not JSON: the error names it.
    with pytest.raises(ValueError, match=rf"^{folder}/result.json, row 3: is not JSON"):
        log.log()
    (folder / "result.json").write_text(content + "\n")
    log.log()
    assert history(local_database, run) == [(1, 0.5), (2, 1.0), (3, 1.5)]


@pytest.mark.parametrize("kept", [0, 1])
def test_iterations_that_a_restored_trial_makes_again_are_logged_once(folder, local_database, kept):
    """Its file of results was cut, and is longer than before when the run is logged next."""
    write_facts(folder, FACTS)
    RunLog(folder, open_store()).log()
    path = folder / "result.json"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:kept]))
    again = {"env_runners": {"accuracy": 0.25}, "timestamp": 2000, "note": "longer than the row it replaces" * 5}
    add(folder, *(result(i, **again) for i in range(kept + 1, 4)))
    RunLog(folder, open_store()).log()
    run = read_runs(local_database)["a run"]
    assert history(local_database, run) == [(1, 0.5), (2, 1.0), (3, 0.25)]
    add(folder, result(4))
    RunLog(folder, open_store()).log()
    assert history(local_database, run) == [(1, 0.5), (2, 1.0), (3, 0.25), (4, 2.0)]


def test_a_trial_that_fails_before_its_first_result_has_failed(workspace, local_database):
    write_facts(workspace, RunFacts("1", "a", {}, FAILED, "ARPO"))
    RunLog(workspace, open_store(local_database, "ARPO")).log()
    run = read_runs(local_database)["a"]
    assert run.info.status == "FAILED"


def test_a_record_that_cannot_be_read_costs_nothing_else(folder, local_database):
    (folder / "trees").mkdir()
    (folder / "trees" / "iteration-00001.parquet").touch()
    with pytest.raises(ArrowInvalid):
        RunLog(folder, open_store()).log()
    run = read_runs(local_database)["a run"]
    assert (run.info.status, run.data.metrics["env_runners/accuracy"]) == ("FINISHED", 1.0)


def test_the_command_logs_the_trials_of_an_experiment(folder, workspace, local_database, capsys):
    """One of them ran without the callback."""
    (workspace / "other").mkdir()
    add(workspace / "other", result(1))
    assert main(["log-run", str(workspace), "--store", local_database]) == 0
    assert capsys.readouterr().out.splitlines() == [
        f"{workspace}/other is in MLflow: {local_database}",
        f"{folder} is in MLflow: {local_database}",
    ]
    runs = read_runs(local_database)
    assert {name: (run.info.status, run.data.metrics["env_runners/accuracy"]) for name, run in runs.items()} == {
        "a run": ("FINISHED", 1.0),
        "other": ("FINISHED", 0.5),
    }
    assert main(["log-run", str(folder / "none")]) == 2
    sentence = "is not the folder of a run: it has no result.json and no trees."
    assert capsys.readouterr().err == f"error: {folder}/none: {sentence}\n"
    assert main(["log-run", str(folder), "--store", "http://127.0.0.1:9"]) == 2
    assert capsys.readouterr().err.startswith(f"error: {folder}: MLflow did not take all of it (ConnectionRefusedError")
