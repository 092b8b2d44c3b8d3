"""A recipe for GPUs starts and trains on one, as its docstring says for trying things out, with a tiny model."""

from __future__ import annotations

import json

import pytest

from rllib_arpo.commands import run_command
from rllib_arpo.envs.sandbox import bubblewrap
from tests.helpers.models import tiny_model
from tests.helpers.parquet import parquet, row
from tuned_examples import reasoning_arpo

#: The smallest numbers of questions, trajectories and tokens with which the recipe's settings make sense.
SMALL_ROLLOUT = {"num_rollouts": 4, "num_initial_rollouts": 2, "max_response_tokens": 256, "max_turn_tokens": 64}
ONE_GPU = [
    "--num-learners", "0", "--num-gpus-per-learner", "0.5", "--num-env-runners", "1",
    "--num-gpus-per-env-runner", "0.5",
]  # fmt: skip


def test_a_recipe_trains_an_iteration_on_one_gpu(ray_with_the_gpu, tmp_path):
    try:
        bubblewrap.check_available()
    except bubblewrap.SandboxError as reason:
        pytest.skip(f"the recipe's python tool cannot run here: {reason}")
    model = tiny_model(tmp_path / "model", "qwen2", max_position_embeddings=8192)
    (tmp_path / "documents.jsonl").write_text(json.dumps({"title": "Six", "text": "A number."}) + "\n")
    run_command("index", ["--output", str(tmp_path / "index"), str(tmp_path / "documents.jsonl")])
    data = parquet(tmp_path / "train.parquet", [row(), row()])
    argv = ["--model", model, "--data", data, "--index", str(tmp_path / "index"), *ONE_GPU]
    config = reasoning_arpo.make_config(reasoning_arpo.parser.parse_args(argv))
    config.adaptive_rollout(**SMALL_ROLLOUT).training(questions_per_batch=2, questions_per_minibatch=2)
    algorithm = config.build_algo()
    try:
        result = algorithm.train()
    finally:
        algorithm.stop()
    assert result["env_runners"]["num_episodes"] == 2
    assert result["env_runners"]["generated_tokens"] > 0
    assert config.dtype == "bfloat16"
