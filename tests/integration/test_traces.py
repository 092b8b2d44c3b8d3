"""A run's traces in `mlflow server`, as headless Chromium shows them."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from typing import Any

import httpx
import pytest
from mlflow.tracking import MlflowClient
from ray import tune

from rllib_arpo.mlflow.callback import ARPOMLflowCallback
from rllib_arpo.mlflow.question_trace import trajectory_name
from rllib_arpo.record.read import Question, questions, record_files
from tests.helpers.scripted_env import ANSWER, TOOL

#: Seconds that MLflow's server may need to start, and its page to show what it has.
PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def mlflow_server(tmp_path_factory) -> Iterator[str]:
    """The URI of `mlflow server`, which may still be starting."""
    folder = tmp_path_factory.mktemp("server")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
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


@pytest.fixture
def run(mlflow_server, scripted, tmp_path, monkeypatch) -> tuple[MlflowClient, str, list[Question]]:
    """The server's client, the id of a run of two iterations in it, and all questions of the run's record."""
    monkeypatch.chdir(tmp_path)
    config = scripted.debugging(record_share=1.0).evaluation(evaluation_interval=1)
    config.training(questions_per_batch=4, questions_per_minibatch=4)
    config.language_model(engine_kwargs={"vocab_size": 256, "replies": [[9, 9, 9, 9, TOOL], [9, 9, 9, 9, ANSWER]]})
    wait_for(mlflow_server)
    [trial] = tune.run(
        "ARPO",
        config=config,
        stop={"training_iteration": 2},
        storage_path=str(tmp_path),
        callbacks=[ARPOMLflowCallback(mlflow_server, experiment_name="traces", traces=100, report=False)],
        verbose=0,
    ).trials
    client = MlflowClient(tracking_uri=mlflow_server)
    [logged] = client.search_runs([client.get_experiment_by_name("traces").experiment_id])
    return client, logged.info.run_id, [question for file in record_files(trial.path) for question in questions(file)]


@pytest.fixture
def page(browser):
    # MLflow's drawers need the room.
    context = browser.new_context(viewport={"width": 2560, "height": 1440})
    context.set_default_timeout(1000 * PATIENCE_S)
    yield context.new_page()
    context.close()


def name(row: Mapping[str, Any]) -> tuple[str, str, str]:
    return row["purpose"], str(row["iteration"]), row["question_id"]


@pytest.mark.slow
def test_chromium_shows_every_question_and_a_fork_s_dh_and_p(mlflow_server, run, page):
    client, run_id, recorded = run
    experiment = client.get_run(run_id).info.experiment_id
    traces = client.search_traces(locations=[experiment], run_id=run_id, include_spans=False)
    ids = {name(trace.info.tags): trace.info.trace_id for trace in traces}
    assert len(traces) == len(recorded) == 2 * (4 + 3)
    assert sorted(ids) == sorted(name(question.row) for question in recorded)

    page.goto(f"{mlflow_server}/#/experiments/{experiment}/traces")
    for question in recorded:
        row = page.locator(f"a[href*='{ids[name(question.row)]}']", has_text=f"{question.row['question_id']}: ")
        row.first.wait_for()

    forked = next(question for question in recorded if question.num_forks())
    fork = next(trajectory for trajectory in forked.trajectories if trajectory.row["parent"] is not None)
    parent = forked.trajectory(fork.row["parent"])
    decided = next(turn for turn in parent.turns if turn["depth"] == fork.row["inherited_turns"])
    page.goto(f"{mlflow_server}/#/experiments/{experiment}/traces?traceId={ids[name(forked.row)]}")
    page.get_by_text(trajectory_name(fork), exact=True).first.click()
    page.get_by_role("tab", name="Attributes").click()
    for symbol, value in (("dH", decided["delta"]), ("P", decided["probability"])):
        page.get_by_text(symbol, exact=True).first.wait_for()
        page.get_by_text(str(value), exact=True).first.wait_for()
