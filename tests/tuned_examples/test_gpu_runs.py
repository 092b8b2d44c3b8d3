"""A recipe for GPUs, started by its command line on a CPU with a tiny model, and killed."""

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
from tests.helpers.models import tiny_model
from tests.helpers.parquet import parquet, row

pytestmark = pytest.mark.slow

RECIPES = Path(__file__).parents[2] / "tuned_examples"
RECIPE = "deepsearch_qwen3_8b_arpo"
#: One process, without a GPU, on two questions an iteration.
SMALL = [
    "--num-learners", "0", "--num-gpus-per-learner", "0", "--num-env-runners", "0", "--num-cpus", "2",
    "--questions-per-batch", "2", "--num-rollouts", "4", "--num-initial-rollouts", "2",
    "--max-response-tokens", "32", "--checkpoint-freq", "1",
]  # fmt: skip
#: Seconds within which a run has its first checkpoint.
PATIENCE_S = 500


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A folder with questions, an index and a model; it is the current one: paths of the command line are relative."""
    parquet(tmp_path / "hard.parquet", [{**row(f"Who is {i}?", "Nobody"), "ability": None} for i in range(8)])
    (tmp_path / "documents.jsonl").write_text(json.dumps({"title": "Six", "text": "A number."}) + "\n")
    run_command("index", ["--output", str(tmp_path / "index"), str(tmp_path / "documents.jsonl")])
    tiny_model(tmp_path / "qwen3", "qwen3", max_position_embeddings=16384)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def iterations(run: Path) -> list[int]:
    return [json.loads(line)["training_iteration"] for line in (run / "trial" / "result.json").read_text().splitlines()]


def wait_for_checkpoint(run: Path, process: subprocess.Popen, log: Path) -> None:
    """Waits until a checkpoint is whole."""
    deadline = time.monotonic() + PATIENCE_S
    while not any(run.glob("trial/checkpoint_*/whole.json")):
        assert process.poll() is None, f"The recipe has ended before it was killed:\n{log.read_text()}"
        assert time.monotonic() < deadline, f"The recipe has no checkpoint after {PATIENCE_S} s."
        time.sleep(0.1)


@pytest.mark.timeout(900)
def test_a_killed_run_goes_on_at_its_checkpoint(folder, monkeypatch, ray_cluster):
    paths = ["--model", "qwen3", "--data", "hard.parquet", "--eval-data", "hard.parquet", "--index", "index"]
    argv, run = [*paths, *SMALL, "--output", "run", "--stop-iters", "3"], folder / "run"
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, str(RECIPES / f"{RECIPE}.py"), *argv],
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            wait_for_checkpoint(run, process, folder / "log")
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    # The second time in this process: its imports are here, and its Ray runs.
    monkeypatch.setattr(sys, "argv", [RECIPE, *argv, "--resume"])
    monkeypatch.setenv("RAY_AIR_NEW_OUTPUT", "0")  # As the recipe does, but for this test alone.
    runpy.run_path(str(RECIPES / f"{RECIPE}.py"), run_name="__main__")
    assert iterations(run) == [1, 2, 3]
    (resumed,) = run.glob("resumed_at_*")
    assert int(resumed.name[-6:]) >= 1
    model = AutoModelForCausalLM.from_pretrained(run / "model")
    assert model.config.model_type == "qwen3"
    assert all(torch.isfinite(weights).all() for weights in model.parameters())
