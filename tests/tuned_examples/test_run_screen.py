"""The whole text of a recipe, as a person sees it."""

import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rllib_arpo.recipes.run_screen import SaysFailures, mlflow_in_words
from tuned_examples import trails_models as models
from tuned_examples.small_models import SmallModel
from tuned_examples.smollm2 import _find_gguf
from tuned_examples.trails_models import cold_started_smollm2

RECIPES = Path(__file__).parents[2] / "tuned_examples"
TINY = SmallModel(hidden_size=64, num_layers=1, num_heads=2, num_backward_heads=0, stages=())

SCREEN = Path(__file__).with_name("make_train.txt")
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
    text = re.sub(r"stop/\w+", "STOP", MACHINE.sub("MACHINE", text))
    text = re.sub(r"(?<= )[-+](?=\d)", "", re.sub("bfloat16|float32", "TYPE", text))
    return re.sub(" +", " ", re.sub(r"\d[\d._-]*\d|\d", "#", text))


@pytest.fixture
def tiny_smollm2(tmp_path, monkeypatch) -> str:
    """A cache with a tiny model in place of the cold-started SmolLM2; the name of its folder."""
    cache = tmp_path / "cache"
    TINY.write_random(cache / f"SmolLM2-135M-Instruct-{_find_gguf()[1]}", models.trails_tokenizer())
    with monkeypatch.context() as patch:
        patch.setattr(models, "cached_folder", lambda name, _make, _cache: name)
        name = cold_started_smollm2(cache_dir=cache)
    TINY.write_random(cache / name, models.trails_tokenizer())
    return name


def command(folder: Path, *argv: str) -> dict[str, Any]:
    """Arguments of `subprocess`: what `make train` runs, in `folder`/here."""
    (folder / "here").mkdir(exist_ok=True)
    environment = {"HOME": str(folder / "home"), "RLLIB_ARPO_CACHE": str(folder / "cache"), "RAY_ADDRESS": "local"}
    return {
        "args": [sys.executable, "-m", "tuned_examples.trails_smollm2_135m_arpo", *argv],
        "cwd": folder / "here",
        "env": {**os.environ, **environment, "PYTHONPATH": str(RECIPES.parent)},
        "text": True,
    }


def test_a_wrong_configuration_ends_a_recipe_with_a_sentence(tmp_path):
    """It never comes to Ray; the log has the traceback."""
    code = (
        "from tuned_examples import trails_small_arpo as recipe\n"
        "from rllib_arpo.recipes import run_terminal\n"
        "args = recipe.parser.parse_args(['--algo', 'GRPO', '--branch-width', '2'])\n"
        "with run_terminal(args, 'trails'): recipe.make_config('m', args)\n"
    )
    options = command(tmp_path) | {"args": [sys.executable, "-c", code]}
    done = subprocess.run(**options, capture_output=True)
    assert (done.returncode, done.stderr) == (2, "")
    sentence = "error: --branch-width 2: --algo GRPO with branching='never' forks nothing."
    assert done.stdout.splitlines()[1:] == [sentence]
    (log,) = (tmp_path / "here" / "outputs").glob("trails-*.log")
    assert "Traceback" in log.read_text()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_text_of_make_train_and_sigterm_ends_it_with_one_line(tmp_path, tiny_smollm2):
    """Without a terminal, as a shell's job in the background, which ignores SIGINT; test_gpu_runs.py resumes a run.

    With ACCEPT=1 it writes the file anew: read what `git diff` shows of it.
    """
    run = tmp_path / "home" / "ray_results"
    process = subprocess.Popen(
        **command(tmp_path, "--checkpoint-freq", "1", "--stop-iters", "20"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
    )
    try:
        lines = [process.stdout.readline()]
        while not lines[-1].startswith("iter    2"):
            lines.append(process.stdout.readline())
            assert lines[-1], process.stderr.read()
        process.terminate()
        sent = time.monotonic()
        out, err = process.communicate(timeout=120)
    finally:
        process.kill()
    assert (process.returncode, "Traceback" in err) == (130, False)
    assert time.monotonic() - sent < 10
    # What had ended before the signal came is said.
    said, last = lines[:-1], out.splitlines()
    assert {line[:5] for line in last[:-1]} <= {"iter ", "WARNI"}
    # Interpreters that end may write to standard error, after the terminal is closed.
    names = {"MODEL": tiny_smollm2, "BIN": str(Path(sys.executable).parent)}
    text = masked("".join([*said, last[-1], "\n"]), HOME=str(tmp_path / "home"), HERE=str(tmp_path), **names)
    (log,) = (tmp_path / "here" / "outputs").glob("trails-*.log")
    if "ACCEPT" in os.environ:
        SCREEN.write_text(text)
    assert text == SCREEN.read_text(), f"{err}\n{log.read_text()}"
    assert {line.rstrip("\n") for line in said} < set(log.read_text().splitlines())
    assert "Started a local Ray instance" in log.read_text()
    # The second result may be said and not yet written.
    (results,) = run.glob("*/trial/result.json")
    assert len(results.read_text().splitlines()) >= 1
    assert any(run.glob("*/trial/checkpoint_*/whole.json"))
    with sqlite3.connect(tmp_path / "here" / "mlflow.db") as store:
        assert store.execute("select status from runs").fetchall() == [("KILLED",)]


def test_the_password_of_a_store_is_not_on_the_screen(monkeypatch):
    monkeypatch.setenv("MLFLOW_TRACKING_URI", "https://me:abc@mlflow.example/?token=abc")
    assert mlflow_in_words("trails") == 'https://***@mlflow.example/?token=***, experiment "trails"'


def test_the_last_failure_of_a_run_is_said(tmp_path, capsys):
    """As Tune writes them; an actor that dies leaves no name of an error."""
    errors = tmp_path / "error.txt"
    errors.write_text(
        "Failure # 1 (occurred at 2026-01-31_10-00-00)\nTraceback:\nNonFiniteLossError: the loss is nan\n"
        "Failure # 2 (occurred at 2026-01-31_10-05-00)\nThe actor died, api_key=abc, in this task.\n"
    )
    SaysFailures().on_trial_recover(1, [], SimpleNamespace(error_file=str(errors)))
    line = "The run failed (The actor died, api_key=***, in this task.); it goes on at its last checkpoint.\n"
    assert capsys.readouterr().out == line
