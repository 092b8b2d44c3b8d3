"""A run keeps its results, says what it does, and continues after failures; with the scripted engine."""

import argparse
import json
import logging
from pathlib import Path

import numpy as np
import pytest
from ray import tune
from ray.rllib.callbacks.callbacks import RLlibCallback
from safetensors.numpy import load_file

from rllib_arpo.policy.module_checkpoint import HUGGINGFACE, MODULE
from rllib_arpo.recipes import run_recipe
from rllib_arpo.recipes.checkpoints import read_score
from rllib_arpo.record.recorder import trial_folder
from tests.helpers.configs import small_config
from tests.helpers.faulty_env import FaultyEnv
from tests.helpers.scripted_env import ANSWER
from tuned_examples.authors import gpu_recipe_parser

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

#: Iteration -> the mean reward that the run reports.
REWARDS = {1: 0.1, 2: 0.5, 3: 0.2, 4: 0.3}
#: Of an iteration that was not asked for at first.
LONGER = {5: 0.4}
#: The run fails in these iterations, once in each.
FAILS_IN = (3, 4)


class FailsAndReports(RLlibCallback):
    """Fails as `FAILS_IN` says (files in the trial's folder remember it), warns, and reports `REWARDS`."""

    def on_train_result(self, *, algorithm, result, **kwargs):
        iteration = result["training_iteration"]
        failed = trial_folder(algorithm) / f"failed-{iteration}"
        if iteration in FAILS_IN and not failed.exists():
            failed.touch()
            raise RuntimeError(f"fails in iteration {iteration}")
        logging.getLogger("rllib_arpo").warning("warned %s", "once" if iteration < 3 else "late")
        result["env_runners"]["episode_return_mean"] = (REWARDS | LONGER)[iteration]


def parse(output: Path, *argv: str) -> argparse.Namespace:
    parser = gpu_recipe_parser(stop_iters=4)
    sizes = ["--num-learners", "0", "--num-env-runners", "0", "--num-gpus-per-env-runner", "0"]
    sizes += ["--num-gpus-per-learner", "0", "--num-envs-per-env-runner", "2", "--checkpoint-freq", "1"]
    return parser.parse_args(["--model", "m", "--data", "d", "--output", str(output), *sizes, *argv])


def results_of(run: Path) -> list[tuple[int, float]]:
    rows = [json.loads(line) for line in (run / "trial" / "result.json").read_text().splitlines()]
    return [(row["training_iteration"], row["env_runners"]["episode_return_mean"]) for row in rows]


def weights_of(checkpoint: Path) -> dict[str, np.ndarray]:
    return load_file(checkpoint / MODULE / HUGGINGFACE / "model.safetensors")


def test_what_a_run_keeps_and_how_it_goes_on(ray_cluster, model_folder, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("RAY_AIR_NEW_OUTPUT", "0")
    # As with the terminal of a run: otherwise the trial's own process shows its warnings.
    monkeypatch.setattr("rllib_arpo.tracking.console.open_terminal", lambda: True)
    tune.register_env("Faulty-v0", FaultyEnv)

    def config():
        made = small_config(model_folder, vocab_size=256, end_token_id=ANSWER, end_probability=0.3)
        # Root "0" is right, the others are wrong, so that the model changes in every iteration.
        made.environment("Faulty-v0", env_config={"rewards": {"0": 1.0}}).callbacks(FailsAndReports)
        made.reporting(record_share=1.0)
        return made.evaluation(evaluation_config={"env_config": {}})

    run = tmp_path / "run"
    once = ["--max-failures", "1"]
    failed = r"^The run failed \(--max-failures 1\); the same command with --resume goes on\.$"
    with pytest.raises(RuntimeError, match=failed) as raised:
        run_recipe(config(), parse(run, *once), "recipe", save_model=True)
    assert "fails in iteration 4" in str(raised.value.__cause__)
    said = capsys.readouterr().out.splitlines()
    assert "The run failed (RuntimeError: fails in iteration 3); it goes on at its last checkpoint." in said
    assert [line[:9] for line in said if line.startswith("iter ")] == ["iter    1", "iter    2", "iter    3"]
    assert {line for line in said if "warned" in line} == {
        "WARNING rllib_arpo: warned once", "WARNING rllib_arpo: warned late",
    }  # fmt: skip

    other_machine = ["--num-learners", "1", "--num-env-runners", "1", "--max-failures", "0"]
    run_recipe(config(), parse(run, *other_machine, "--resume"), "recipe", save_model=True)
    said = capsys.readouterr().out.splitlines()
    assert "The run goes on at resumed_at_000003." in said
    assert [line[:9] for line in said if line.startswith("iter ")] == ["iter    4"]
    assert results_of(run) == list(REWARDS.items())
    # The seconds go on as well.
    seconds = [json.loads(line)["time_total_s"] for line in (run / "trial" / "result.json").read_text().splitlines()]
    assert seconds == sorted(seconds)
    # Tune counts its checkpoints anew.
    assert sorted(path.name for path in run.glob("trial/checkpoint_*")) == ["checkpoint_000000"]
    assert sorted(path.name for path in (run / "trial" / "trees").iterdir()) == [
        f"iteration-{i:05d}.parquet" for i in REWARDS
    ]
    assert read_score(run) == {"iteration": 2, "metric": "env_runners/episode_return_mean", "value": 0.5}
    model = load_file(run / "model" / "model.safetensors")
    assert all((model[name] == weights).all() for name, weights in weights_of(run / "best_checkpoint").items())
    last = weights_of(run / "trial" / "checkpoint_000000")
    assert any((model[name] != weights).any() for name, weights in last.items())

    # A run that has ended goes on only if it is asked for more iterations.
    ended = rf"^--stop-iters 4: the run in {run} has done 4; ask for more to go on\.$"
    with pytest.raises(ValueError, match=ended):
        run_recipe(config(), parse(run, *other_machine, "--resume"), "recipe", save_model=True)
    run_recipe(config(), parse(run, *other_machine, "--resume", "--stop-iters", "5"), "recipe", save_model=True)
    assert results_of(run) == [*(REWARDS | LONGER).items()]
