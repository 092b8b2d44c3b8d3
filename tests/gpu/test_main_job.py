"""The recipe of `make train` to its stop reward, or without SmolLM2 its small twin; and a recipe for GPUs starts.

Engine and learner share the GPU; all else is the recipes' own.
"""

import importlib.metadata
import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from release.benchmarks.common.bench import num_cores, timed
from release.benchmarks.end_to_end.our_side import evaluate, iterate
from release.benchmarks.end_to_end.task_file import SIZES, make_config, make_model
from rllib_arpo.commands import run_command
from rllib_arpo.envs.sandbox import bubblewrap
from tests.gpu.workbench import Figures
from tests.helpers.models import tiny_model
from tests.helpers.parquet import parquet, row
from tuned_examples.smollm2 import PACKAGE


@dataclass(frozen=True, slots=True)
class Goal:
    """What a recipe's `size` (of `SIZES`) has to reach within a number of iterations; None: anything.

    The mean `reward` of an iteration ends the run; the `accuracy` is that on the held-out questions at the end.
    """

    size: str
    reward: float | None
    accuracy: float | None
    num_iterations: int


SMOLLM2 = Goal("full", reward=0.95, accuracy=0.9, num_iterations=16)
SMALL = Goal("quick", reward=None, accuracy=0.7, num_iterations=24)
TINY = Goal("tiny", reward=None, accuracy=None, num_iterations=2)
#: The smallest numbers of questions, trajectories and tokens with which the settings of recipes for GPUs make sense.
SMALL_ROLLOUT = {"num_rollouts": 4, "num_initial_rollouts": 2, "max_response_tokens": 256, "max_turn_tokens": 64}
ONE_GPU = [
    "--num-learners", "0", "--num-gpus-per-learner", "0.5", "--num-env-runners", "1",
    "--num-gpus-per-env-runner", "0.5",
]  # fmt: skip


def has_smollm2() -> bool:
    try:
        importlib.metadata.distribution(PACKAGE)
    except importlib.metadata.PackageNotFoundError:
        return False
    return True


def test_the_main_job(own_ray, sizes, work, figures):
    goal = TINY if sizes.is_tiny else SMOLLM2 if has_smollm2() else SMALL
    cold_start_s, model = timed(make_model, goal.size, work / "models")
    figures.add(f"cold start of {Path(model).name}, if it is not there yet", cold_start_s, "s")
    size = replace(SIZES[goal.size], num_iterations=goal.num_iterations)
    where = {"gpu": torch.cuda.is_available(), "num_threads": num_cores()}
    algorithm = make_config({**asdict(size), "side": "arpo", "model": model, "seed": 0, **where}).build_algo()
    try:
        train(algorithm, goal, figures)
    finally:
        algorithm.stop()


def train(algorithm: Any, goal: Goal, figures: Figures) -> None:
    figures.add("held-out accuracy before training", evaluate(algorithm))
    rows: list[dict[str, float]] = []
    while len(rows) < goal.num_iterations and not (rows and goal.reward and rows[-1]["reward"] >= goal.reward):
        rows.append(iterate(algorithm))
    figures.add(
        "mean reward of the last iteration", rows[-1]["reward"], at_least=goal.reward, detail={"iterations": rows}
    )
    figures.add("iterations", len(rows))
    figures.add("held-out accuracy at the end", evaluate(algorithm), at_least=goal.accuracy)
    later = rows[1:] or rows
    for name in ("seconds", "sampling_s", "update_s", "sync_s"):
        figures.add(f"an iteration: {name}", sum(row[name] for row in later) / len(later), "s")
    tokens, seconds = (sum(row[name] for row in later) for name in ("generated_tokens", "sampling_s"))
    figures.add("generated tokens", tokens / seconds, "tokens/s")


def test_a_recipe_for_gpus_trains_an_iteration_on_one(own_ray, tmp_path):
    """With a tiny model, as its docstring says for trying things out."""
    from tuned_examples import reasoning_arpo

    try:
        bubblewrap.check_available()
    except bubblewrap.SandboxError as reason:
        pytest.skip(f"the recipe's python tool cannot run here: {reason}")
    model = tiny_model(tmp_path / "model", "qwen2", max_position_embeddings=8192)
    (tmp_path / "documents.jsonl").write_text(json.dumps({"title": "Six", "text": "A number."}) + "\n")
    run_command("index", ["--output", str(tmp_path / "index"), str(tmp_path / "documents.jsonl")])
    data = parquet(tmp_path / "train.parquet", [row(), row()])
    argv = ["--model", model, "--data", data, "--index", str(tmp_path / "index"), *ONE_GPU]
    config = reasoning_arpo.make_config(model, reasoning_arpo.parser.parse_args(argv))
    config.adaptive_rollout(**SMALL_ROLLOUT).training(questions_per_batch=2, questions_per_minibatch=2)
    algorithm = config.build_algo()
    try:
        result = algorithm.train()
    finally:
        algorithm.stop()
    assert result["env_runners"]["num_episodes"] == 2
    assert result["env_runners"]["generated_tokens"] > 0
    assert config.dtype == "bfloat16"
