"""Rows of models that earlier commands evaluated."""

from __future__ import annotations

import json
import shutil

import pytest

from rllib_arpo.commands import run_command
from rllib_arpo.evaluation import runner
from tests.evaluation.conftest import scripted_command

TASKS = {"tasks": "arithmetic,catalogue", "limit": "4"}


@pytest.fixture(scope="module")
def models(model_folder, tmp_path_factory):
    """Copies of the model with other fingerprints: "base", "s0" and "s1"."""
    root = tmp_path_factory.mktemp("models")
    for name in ("base", "s0", "s1"):
        shutil.copytree(model_folder, root / name)
        config = root / name / "config.json"
        config.write_text(config.read_text().replace("{", f'{{"name": "{name}",', 1))
    return {name: str(root / name) for name in ("base", "s0", "s1")}


@pytest.fixture(scope="module")
def grpo(models, tmp_path_factory):
    """The results of two seeds of a method."""
    folder = tmp_path_factory.mktemp("grpo")
    command = scripted_command(f"GRPO={models['s0']}", folder, **TASKS, compare=f"GRPO={models['s1']}")
    assert run_command("evaluate", [*command, "--no-mlflow"]) == 0
    return folder


@pytest.fixture
def evaluated(models, tmp_path, capsys):
    """evaluated("--rows-of", DIR, model="base", ...) -> the methods' table as JSON, or the error."""

    def run(*more: str, model: str = "base", output: str = "out", **options):
        command = scripted_command(models.get(model, model), tmp_path / output, **TASKS | options)
        status = run_command("evaluate", [*command, "--no-mlflow", *more])
        error = capsys.readouterr().err
        return error if status else json.loads((tmp_path / output / "summary.json").read_text())["methods"]

    return run


def rows(table) -> list[tuple[str, int]]:
    return [(row["label"], len(row["models"])) for row in table["rows"]]


def test_another_folder_adds_its_rows(evaluated, grpo, models):
    table = evaluated("--rows-of", str(grpo))
    assert rows(table) == [("base tools", 1), ("GRPO tools", 2)]
    # The engine is scripted: all models say the same.
    base, trained = table["rows"]
    assert {task: e["value"] for task, e in trained["scores"].items()} == {
        task: e["value"] for task, e in base["scores"].items()
    }
    assert trained["models"] == [f"{models[name]} ({grpo})" for name in ("s0", "s1")]
    assert (trained["average"]["value"], trained["minus_first"]["value"]) == (base["average"]["value"], 0.0)
    assert table["notes"] == []


def test_a_later_command_shows_what_the_folder_has_and_asks_nothing_again(evaluated, monkeypatch):
    evaluated(model="s0")
    assert rows(evaluated()) == [("base tools", 1), ("s0 tools", 1)]
    monkeypatch.setattr(runner, "make_engine", lambda *_args: pytest.fail("an engine was started"))
    assert rows(evaluated(model="s0")) == [("s0 tools", 1), ("base tools", 1)]


def test_seeds_of_sampling_in_two_folders_share_a_row(evaluated, models, tmp_path):
    evaluated(output="first", seed="1")
    assert rows(evaluated("--rows-of", str(tmp_path / "first"))) == [("base tools", 2)]
    shutil.copytree(tmp_path / "first", tmp_path / "copy")
    error = evaluated("--rows-of", str(tmp_path / "first"), "--rows-of", str(tmp_path / "copy"))
    assert error == (
        f"error: --rows-of {tmp_path / 'copy'}: {models['base']} tools has the same samples of arithmetic in"
        f" {tmp_path / 'first'}, and they would count twice.\n"
    )


def test_what_differs_between_the_rows_is_noted(evaluated, models, tmp_path):
    cooler, other = tmp_path / "cooler", tmp_path / "other"
    evaluated(model=f"cooler={models['base']}", output="cooler", temperature="0.5")
    env_config = {"arithmetic": {"num_test_questions": 12, "reward": "accuracy"}}
    evaluated(model="s0", output="other", env_config=json.dumps(env_config))
    table = evaluated("--rows-of", str(cooler), "--rows-of", str(other))
    assert rows(table) == [("base tools", 1), ("cooler tools", 1), ("s0 tools", 1)]
    assert table["notes"] == [
        f"The rows of {cooler} have temperature=0.5, not 1.0.",
        f'The rows of {other} have env_config/reward="accuracy", not null.',
    ]


def test_one_model_with_two_temperatures_needs_methods(evaluated, tmp_path):
    evaluated(output="cooler", temperature="0.5", seed="1")
    error = evaluated("--rows-of", str(tmp_path / "cooler"))
    assert f"base tools has other settings in {tmp_path / 'out'}: give both a method, --model METHOD=MODEL." in error


def test_greedy_answers_are_the_same_with_every_seed(evaluated, tmp_path):
    evaluated(output="first", temperature="0", seed="1")
    error = evaluated("--rows-of", str(tmp_path / "first"), temperature="0")
    assert "has the same samples of arithmetic in" in error


def test_an_unfinished_model_of_the_folder_is_left_out_and_one_of_another_folder_refused(evaluated, models, tmp_path):
    evaluated(model="s0")
    (lost,) = (tmp_path / "out").glob("*-catalogue/trees/question-00000002.parquet")
    lost.unlink()
    sentence = (
        f"{tmp_path / 'out'}: {models['s0']} tools has answered 3 questions of catalogue, not the 4 of this command."
    )
    table = evaluated()
    assert (rows(table), table["notes"]) == ([("base tools", 1), ("s0 tools", 1)], [f"Left out: {sentence}"])
    assert [row["average"] is None for row in table["rows"]] == [False, True]
    assert evaluated("--rows-of", str(tmp_path / "out"), output="new") == f"error: --rows-of {sentence}\n"


def test_other_questions_are_refused(evaluated, tmp_path):
    evaluated(output="other", env_config='{"arithmetic": {"seed": 7, "num_test_questions": 12}}')
    error = evaluated("--rows-of", str(tmp_path / "other"), model="s0")
    assert error.endswith("was asked other questions of arithmetic.\n")


def test_other_weights_of_the_same_name_need_a_method(evaluated, models, tmp_path):
    model = tmp_path / "model"
    shutil.copytree(models["s0"], model)
    evaluated(output="old", model=str(model))
    (model / "config.json").write_text((model / "config.json").read_text().replace('"s0"', '"later"'))
    error = evaluated("--rows-of", str(tmp_path / "old"), model=str(model))
    assert f"has other weights in {tmp_path / 'out'}: give both a method, --model METHOD=MODEL." in error


@pytest.mark.parametrize(
    ("tasks", "message"),
    [
        ("arithmetic,catalogue", "this is the folder of --output, whose rows are shown anyway."),
        ("trails", "no results of the tasks trails."),
    ],
)
def test_folders_that_have_nothing_to_add_are_refused(evaluated, grpo, tmp_path, tasks, message):
    folder = grpo if tasks == "trails" else tmp_path / "out"
    assert (
        evaluated("--rows-of", str(folder), tasks=tasks, env_config="{}") == f"error: --rows-of {folder}: {message}\n"
    )
