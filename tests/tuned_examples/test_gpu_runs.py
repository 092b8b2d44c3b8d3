"""The recipes for GPUs, started by their command lines on a CPU, with tiny models of their architectures."""

from __future__ import annotations

import json
import os
import runpy
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from rllib_arpo.commands import run_command
from tests.helpers import script
from tests.helpers.models import tiny_model
from tests.helpers.parquet import parquet, row

RECIPES = Path(__file__).parents[2] / "tuned_examples"
#: One process, without a GPU, on two questions an iteration.
SMALL = [
    "--num-learners", "0", "--num-gpus-per-learner", "0", "--num-env-runners", "0", "--num-cpus", "2",
    "--questions-per-batch", "2", "--num-rollouts", "4", "--num-initial-rollouts", "2",
    "--max-response-tokens", "32", "--checkpoint-freq", "1",
]  # fmt: skip
#: Seconds within which a run has its first checkpoint.
PATIENCE_S = 500
#: As Tune's saved state has the name of the first checkpoint.
FIRST_CHECKPOINT = b"checkpoint_000000".hex()


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A folder with the questions, as both recipes want them, and an index."""
    folder = tmp_path_factory.mktemp("recipes")
    parquet(folder / "train.parquet", [row(f"What is {i} + 1?", str(i + 1)) for i in range(8)])
    parquet(folder / "hard.parquet", [{**row(f"Who is {i}?", "Nobody"), "ability": None} for i in range(8)])
    (folder / "documents.jsonl").write_text(json.dumps({"title": "Six", "text": "A number."}) + "\n")
    run_command("index", ["--output", str(folder / "index"), str(folder / "documents.jsonl")])
    return folder


@pytest.fixture
def folder(made, monkeypatch):
    """It is the current one: paths of the command lines are relative."""
    monkeypatch.chdir(made)
    return made


def arguments(folder: Path, architecture: str, data: str, *more: str) -> list[str]:
    """The command line of a recipe with a model of this architecture; the run's folder is "run-ARCHITECTURE"."""
    tiny_model(folder / architecture, architecture, max_position_embeddings=16384)
    paths = ["--model", architecture, "--data", data, "--index", "index", "--output", f"run-{architecture}"]
    return [*paths, *SMALL, *more]


def start_here(monkeypatch, name: str, argv: list[str]) -> None:
    """Runs a recipe as a script, in this process: its imports are here, and its Ray has warm workers."""
    monkeypatch.setattr(sys, "argv", [name, *argv])
    monkeypatch.setenv("RAY_AIR_NEW_OUTPUT", "0")  # As the recipe does, but for this test alone.
    runpy.run_path(str(RECIPES / f"{name}.py"), run_name="__main__")


def iterations(run: Path) -> list[int]:
    (results,) = run.glob("*/result.json")
    return [json.loads(line)["training_iteration"] for line in results.read_text().splitlines()]


def check_model(run: Path, kind: str) -> None:
    """The run has left a model of this kind, with weights that are numbers."""
    model = AutoModelForCausalLM.from_pretrained(run / "model")
    assert model.config.model_type == kind
    assert all(torch.isfinite(weights).all() for weights in model.parameters())


def wait_for_checkpoint(run: Path, process: subprocess.Popen) -> None:
    """Waits until the copy of Tune's saved state knows a checkpoint."""
    deadline = time.monotonic() + PATIENCE_S
    while not any(FIRST_CHECKPOINT in path.read_text() for path in run.glob("state/experiment_state-*.json")):
        assert process.poll() is None, "The recipe has ended before it was killed."
        assert time.monotonic() < deadline, f"The recipe has no checkpoint after {PATIENCE_S} s."
        time.sleep(0.1)


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("recipe", "architecture", "data", "more", "is_damaged"),
    [
        ("reasoning_arpo", "qwen2", "train.parquet", ["--python-backend", "unsafe"], False),
        ("deepsearch_qwen3_8b_arpo", "qwen3", "hard.parquet", ["--eval-data", "hard.parquet"], True),
    ],
    ids=["", "while Tune wrote its state"],
)
def test_a_killed_run_goes_on_at_its_checkpoint(
    folder, monkeypatch, ray_cluster, recipe, architecture, data, more, is_damaged
):
    argv = arguments(folder, architecture, data, "--stop-iters", "6", *more)
    run = folder / f"run-{architecture}"
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            script.command(RECIPES / f"{recipe}.py", *argv),
            stdout=log,
            stderr=subprocess.STDOUT,
            env={**os.environ, "TUNE_GLOBAL_CHECKPOINT_S": "0", "PYTHONPATH": str(RECIPES.parent)},
            start_new_session=True,
        )
        try:
            wait_for_checkpoint(run, process)
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    killed = iterations(run)
    if is_damaged:
        for path in (*run.glob("*.json"), *run.glob("*.pkl")):
            if path.name != "arguments.json":
                os.truncate(path, path.stat().st_size // 2)
    start_here(monkeypatch, recipe, [*argv, "--resume"])
    written = iterations(run)
    assert written[: len(killed)] == killed
    resumed = written[len(killed) :]
    assert resumed == list(range(resumed[0], 7))
    assert 1 < resumed[0] <= killed[-1] + 1
    check_model(run, architecture)


def test_the_reasoning_recipe_runs_with_a_llama(folder, monkeypatch, ray_cluster):
    start_here(monkeypatch, "reasoning_arpo", arguments(folder, "llama", "train.parquet", "--stop-iters", "2"))
    assert iterations(folder / "run-llama") == [1, 2]
    check_model(folder / "run-llama", "llama")
