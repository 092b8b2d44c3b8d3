"""What a person sees of a run: the whole text of a recipe, and the live view on a terminal."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from rllib_arpo.models import _find_gguf
from rllib_arpo.recipes import gpu_recipe_parser, run_gpu_recipe, run_terminal
from rllib_arpo.recipes.run_screen import SaysFailures
from rllib_arpo.trails import models
from rllib_arpo.trails.models import SmallModel, cold_started_smollm2
from tests.helpers import script
from tests.helpers.clusters import own_ray
from tests.helpers.configs import small_config
from tests.helpers.screens import on_a_terminal, screen_of

RECIPES = Path(__file__).parents[2] / "tuned_examples"
TINY = SmallModel(hidden_size=64, num_layers=1, num_heads=2, num_backward_heads=0)

FIRST_SCREEN = """\
ARPO, experiment "trails". Output of other packages: outputs/trails-#.log (--verbose #: here)
trains on Trails-v#, seed #: # iteration of # questions, fewer if the mean reward is #
trees M = # trajectories a question, N = # of them from the prompt, forks: threshold
policy HERE/cache/MODEL, TYPE
machine MACHINE
MLflow BIN/mlflow ui --backend-store-uri sqlite:///mlflow.db, experiment "trails"
columns reward, acc(uracy), tools: a trajectory's mean; dH: how much the entropy rises after a tool's
 response; forks: of a question; roll(out), upd(ate) and sync of the weights: seconds
results ~/ray_results/ARPO_#
evaluation accuracy # format # reward # # questions
"""
ITERATION = "iter # reward # acc # tools # dH - forks # roll # upd # sync # s\n"
END = """
The run ended before its first evaluation in training; the one before it is in \
HOME/ray_results/ARPO_#/ARPO_Trails-v#_ID/trees/evaluation-#.parquet
"""
#: Of a run of a GPU recipe.
LEFT = """\
ARPO, experiment "tiny". Output of other packages: outputs/tiny-#.log (--verbose #: here)
trains on ToolMath-v#, seed #: # iteration of # questions, fewer if the mean reward is #
trees M = # trajectories a question, N = # of them from the prompt, forks: threshold
policy MODEL, TYPE
machine MACHINE
MLflow BIN/mlflow ui --backend-store-uri sqlite:///mlflow.db, experiment "tiny"
columns reward, acc(uracy), tools: a trajectory's mean; dH: how much the entropy rises after a tool's
 response; forks: of a question; roll(out), upd(ate) and sync of the weights: seconds
results run
iter # reward # acc # tools # dH - forks # roll # upd # sync # s
The model of iteration # (the best env_runners/episode_return_mean, #) is in HERE/run/model.
That of the last checkpoint: rllib-arpo export HERE/run/ARPO_ToolMath-v#_ID/checkpoint_# FOLDER
"""
#: The scripted engine is not the learner's model.
WARNING = """\
WARNING rllib_arpo: engine_logprob_gap is # (limit #): engine and learner disagree about the sampled tokens: \
look at dtype, temperature and the weight sync.
"""


#: Not by its values: the memory of a virtual machine may change meanwhile.
MACHINE = re.compile(r"\d+ cores, \d+ GiB, (no GPU|\d+ GPUs?) \(.+\)")
#: Begins of variables of the user that change the text.
SETTINGS = ("MLFLOW_", "RAY_", "RLLIB_ARPO_", "TTY_", "COLUMNS", "FORCE_COLOR", "NO_COLOR")


@pytest.fixture(autouse=True)
def no_settings(monkeypatch):
    for name in [name for name in os.environ if name.startswith(SETTINGS)]:
        monkeypatch.delenv(name)


def masked(text: str, **names: str) -> str:
    """`text` without what differs from run to run; `names`: word -> what it stands for."""
    for word, meant in names.items():
        text = text.replace(meant, word)
    text = MACHINE.sub("MACHINE", text)
    text = re.sub(r"_[0-9a-f]{5}_\d{5}_0_[\d_-]+", "_ID", text)
    text = re.sub(r"(?<= )[-+](?=\d)", "", re.sub("bfloat16|float32", "TYPE", text))
    return re.sub(" +", " ", re.sub(r"\d[\d._-]*\d|\d", "#", text))


@pytest.fixture
def tiny_smollm2(tmp_path, monkeypatch) -> str:
    """A cache with a tiny model in place of the cold-started SmolLM2; the name of its folder."""
    cache = tmp_path / "cache"
    TINY._write_random(cache / f"SmolLM2-135M-Instruct-{_find_gguf()[1]}")
    with monkeypatch.context() as patch:
        patch.setattr(models, "cached_folder", lambda name, _make, _cache: name)
        name = cold_started_smollm2(cache_dir=cache)
    TINY._write_random(cache / name)
    return name


@pytest.mark.timeout(900)
def test_the_text_of_make_train_where_there_is_no_terminal(tmp_path, tiny_smollm2):
    (tmp_path / "here").mkdir()
    done = subprocess.run(
        script.command(RECIPES / "trails_smollm2_135m_arpo.py", "--stop-iters", "1"),
        cwd=tmp_path / "here",
        env={
            **os.environ, "HOME": str(tmp_path / "home"), "RLLIB_ARPO_CACHE": str(tmp_path / "cache"),
            "PYTHONPATH": str(RECIPES.parent),
        },
        capture_output=True,  # Interpreters that end may write to standard error, after the terminal is closed.
        text=True,
        timeout=800,
    )  # fmt: skip
    names = {"MODEL": tiny_smollm2, "BIN": str(Path(sys.executable).parent)}
    text = masked(done.stdout, HOME=str(tmp_path / "home"), HERE=str(tmp_path), **names)
    (log,) = (tmp_path / "here" / "outputs").glob("trails-*.log")
    assert text == FIRST_SCREEN + ITERATION + END, f"{done.stderr}\n{log.read_text()}"
    assert FIRST_SCREEN.count("\n") <= 15
    assert set(done.stdout.splitlines()) < set(log.read_text().splitlines())
    assert "Started a local Ray instance" in log.read_text()


@pytest.fixture
def ray_with_output():
    """Ray that hands to the driver what its workers write."""
    with own_ray(num_cpus=2):
        yield


def test_the_live_view_of_a_run_and_what_is_left_on_the_terminal(tmp_path, model_folder, monkeypatch, ray_with_output):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))  # Other folders have their whole names.
    for name, value in (("TERM", "xterm"), ("RLLIB_ARPO_PROGRESS", "bar"), ("RAY_AIR_NEW_OUTPUT", "0")):
        monkeypatch.setenv(name, value)
    parser = gpu_recipe_parser(num_learners=0, num_env_runners=0, stop_iters=1)
    args = parser.parse_args(["--model", "m", "--data", "d", "--output", "run"])
    config = small_config(model_folder).debugging(progress_bar="bar")
    with on_a_terminal() as pty, run_terminal(args, "tiny"):
        run_gpu_recipe(config, args, "tiny")
    names = {"MODEL": model_folder, "BIN": str(Path(sys.executable).parent)}
    screen = masked("\n".join(screen_of(pty.text)), HERE=str(tmp_path), **names)
    # Standard output and standard error of a worker come in any order.
    assert WARNING in screen
    assert screen.replace(WARNING, "") == LEFT
    assert re.search(r"rollout \(\d+ tok/s, \d+ forks, 0 tools in flight\) .* 2/2 questions", pty.text)


def test_the_last_failure_of_a_run_is_said(tmp_path, capsys):
    """As Tune writes them; an actor that dies leaves no name of an error."""
    errors = tmp_path / "error.txt"
    errors.write_text(
        "Failure # 1 (occurred at 2026-01-31_10-00-00)\nTraceback:\nNonFiniteLossError: the loss is nan\n"
        "Failure # 2 (occurred at 2026-01-31_10-05-00)\nThe actor died unexpectedly before finishing this task.\n"
    )
    SaysFailures().on_trial_recover(1, [], SimpleNamespace(error_file=str(errors)))
    line = (
        "The run failed (The actor died unexpectedly before finishing this task.); it goes on at its last checkpoint.\n"
    )
    assert capsys.readouterr().out == line
