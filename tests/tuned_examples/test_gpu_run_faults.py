"""What a run of a GPU recipe keeps, and how it goes on after failures, with the scripted engine."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import numpy as np
import pytest
from ray import tune
from ray.rllib.callbacks.callbacks import RLlibCallback
from safetensors.numpy import load_file

from rllib_arpo.policy.export import MODULE
from rllib_arpo.policy.module_checkpoint import HUGGINGFACE
from rllib_arpo.recipes import gpu_run
from rllib_arpo.recipes.best_checkpoint import read_score
from rllib_arpo.recipes.command_line import gpu_recipe_parser
from rllib_arpo.tracking.trial_folder import trial_folder
from tests.helpers.configs import small_config
from tests.helpers.faulty_env import FaultyEnv
from tests.helpers.scripted_env import ANSWER

#: Iteration -> the mean reward that the run reports.
REWARDS = {1: 0.1, 2: 0.5, 3: 0.2, 4: 0.3}
#: The run fails in these iterations, once in each.
FAILS_IN = (3, 4)


class FailsAndReports(RLlibCallback):
    """Fails as `FAILS_IN` says (files in the trial's folder remember it), and reports `REWARDS`."""

    def on_train_result(self, *, algorithm, result, **kwargs):
        iteration = result["training_iteration"]
        failed = trial_folder(algorithm) / f"failed-{iteration}"
        if iteration in FAILS_IN and not failed.exists():
            failed.touch()
            raise RuntimeError(f"fails in iteration {iteration}")
        result["env_runners"]["episode_return_mean"] = REWARDS[iteration]


def parse(output: Path, *argv: str) -> argparse.Namespace:
    parser = gpu_recipe_parser(num_learners=0, num_env_runners=0, stop_iters=4)
    return parser.parse_args(["--model", "m", "--data", "d", "--output", str(output), "--checkpoint-freq", "1", *argv])


def results_of(run: Path) -> list[tuple[int, float]]:
    (results,) = run.glob("ARPO*/result.json")
    rows = [json.loads(line) for line in results.read_text().splitlines()]
    return [(row["training_iteration"], row["env_runners"]["episode_return_mean"]) for row in rows]


def weights_of(checkpoint: Path) -> dict[str, np.ndarray]:
    return load_file(checkpoint / MODULE / HUGGINGFACE / "model.safetensors")


def test_what_a_run_keeps_and_how_it_goes_on(ray_cluster, model_folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAY_AIR_NEW_OUTPUT", "0")
    tune.register_env("Faulty-v0", FaultyEnv)
    config = small_config(model_folder, vocab_size=256, end_token_id=ANSWER, end_probability=0.3)
    # Root "0" is right, the others are wrong, so that the model changes in every iteration.
    config.environment("Faulty-v0", env_config={"rewards": {"0": 1.0}}).callbacks(FailsAndReports)
    config.evaluation(evaluation_config={"env_config": {}})
    run = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(tune.Tuner, "fit", lambda tuner: sys.exit("killed before Tune has written anything"))
        with pytest.raises(SystemExit):
            gpu_run.run_gpu_recipe(config, parse(run, "--max-failures", "1"), "recipe")
    with pytest.raises(RuntimeError, match=r"^The run failed \(--max-failures 1\); --resume goes on\.$") as raised:
        gpu_run.run_gpu_recipe(config, parse(run, "--max-failures", "1", "--resume"), "recipe")
    assert "fails in iteration 4" in str(raised.value.__cause__)
    said = [line for line in capsys.readouterr().out.splitlines() if line.startswith("The run failed")]
    assert said == ["The run failed (RuntimeError: fails in iteration 3); it goes on at its last checkpoint."]
    gpu_run.run_gpu_recipe(config, parse(run, "--max-failures", "1", "--resume"), "recipe")
    assert results_of(run) == list(REWARDS.items())
    assert sorted(path.name for path in run.glob("ARPO*/checkpoint_*")) == ["checkpoint_000002", "checkpoint_000003"]
    assert read_score(run) == {"iteration": 2, "metric": "env_runners/episode_return_mean", "value": 0.5}
    model = load_file(run / "model" / "model.safetensors")
    assert all((model[name] == weights).all() for name, weights in weights_of(run / "best_checkpoint").items())
    (last,) = run.glob("ARPO*/checkpoint_000003")
    assert any((model[name] != weights).any() for name, weights in weights_of(last).items())
