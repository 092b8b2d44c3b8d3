"""The entropy command: what it writes and refuses; tests/plots/test_task_entropy.py has its figures by hand."""

import json

import pytest

from rllib_arpo import commands
from rllib_arpo.commands.entropy import SUMMARY
from rllib_arpo.evaluation import runner
from rllib_arpo.record.read import questions, record_files
from tests.evaluation.conftest import scripted_command


def entropy_command(model_folder, output, **options) -> list[str]:
    """With the scripted engine, whose model now and then calls the tool."""
    return ["entropy", *scripted_command(model_folder, output, **options)]


def test_two_tasks_with_the_scripted_engine(model_folder, tmp_path, capsys):
    config = json.dumps({"arithmetic": {"num_test_questions": 12}, "trails": {}})
    options = {"tasks": "arithmetic,trails", "limit": "5", "samples": "2", "env_config": config}
    assert commands.main(entropy_command(model_folder, tmp_path / "out", **options)) == 0
    printed = capsys.readouterr().out
    assert "arithmetic: 5 questions, 10 samples" in printed and "trails: 5 questions, 10 samples" in printed
    assert {path.name for path in (tmp_path / "out").glob("*.png")} == {
        "entropy-arithmetic.png",
        "entropy-trails.png",
    }
    turns = [
        placed.turn for file in record_files(tmp_path / "out") for found in questions(file) for placed in found.turns()
    ]
    assert turns and all(len(turn.entropies) == len(turn.token_ids) for turn in turns)
    summary = json.loads((tmp_path / "out" / SUMMARY).read_text())
    assert (summary["model"], summary["settings"]["branch_base_probability"]) == (model_folder, 0.5)
    assert [task["task"] for task in summary["tasks"]] == ["arithmetic", "trails"]


def test_a_model_that_calls_no_tool(model_folder, tmp_path, capsys):
    engine = json.dumps({"vocab_size": 259, "replies": [[65, 66]]})
    assert commands.main(entropy_command(model_folder, tmp_path, engine_kwargs=engine, limit="3")) == 0
    assert "No turn followed a tool response" in capsys.readouterr().out
    (task,) = json.loads((tmp_path / SUMMARY).read_text())["tasks"]
    assert (task["nodes"], list(task["curves"])) == (0, ["start"])


@pytest.mark.parametrize(("option", "value", "message"), [
    ("--branch-threshold", "nan", "branch_threshold=nan: must be a finite number."),
    ("--branch-base-probability", "2", "branch_base_probability=2.0: must be a number in [0, 1]."),
])  # fmt: skip
def test_a_wrong_rule_is_said_before_an_engine_starts(
    model_folder, tmp_path, monkeypatch, capsys, option, value, message
):
    monkeypatch.setattr(runner, "make_engine", lambda *_args: pytest.fail("an engine was started"))
    assert commands.main([*entropy_command(model_folder, tmp_path / "out"), option, value]) == 2
    assert capsys.readouterr().err == f"error: {message}\n"
