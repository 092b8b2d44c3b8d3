"""The command line: what it refuses, what it writes."""

import json
import shutil
from argparse import Namespace

import pytest
import torch
from pyarrow.fs import LocalFileSystem
from transformers import AutoConfig

from rllib_arpo.commands import run_command
from rllib_arpo.envs.errors import BrokenToolError
from rllib_arpo.envs.tasks import ArithmeticTask
from rllib_arpo.envs.tools.python import PythonTool
from rllib_arpo.evaluation import model_folders as models
from rllib_arpo.evaluation import runner
from rllib_arpo.files import write_checksums
from rllib_arpo.policy.module_checkpoint import MODULE
from tests.evaluation.conftest import ANSWER, CALL, recorded, samples, scripted_command
from tests.helpers.models import byte_tokenizer
from tests.helpers.parquet import parquet
from tests.helpers.parquet import row as parquet_row

FIRST = ArithmeticTask(split="test").question(0)


@pytest.fixture
def no_engine(monkeypatch):
    """The engine must not be reached."""

    def make_engine(*_args):
        raise AssertionError("an engine was started")

    monkeypatch.setattr(runner, "make_engine", make_engine)


@pytest.mark.parametrize(("tasks", "more", "message"), [
    ("arithmetik", [], "Unknown task 'arithmetik': did you mean 'arithmetic'?"),
    ("arithmetic", ["--data", "trails=x.jsonl"], "Unknown task in --data or --env-config 'trails'"),
    ("parquet", ["--data", "parquet=/nowhere/x.parquet"], "/nowhere/x.parquet"),
    ("arithmetic", ["--data", "arithmetic"], "--data 'arithmetic': write TASK=PATH."),
    ("arithmetic", ["--env-config", '{"arithmetic": {"sede": 1}}'], "Unknown env_config key 'sede': did you mean"),
    ("arithmetic", ["--env-config", "{"], "--env-config: cannot be read"),
    ("arithmetic", ["--env-config", "[1]"], "--env-config: must be an object with keys."),
    ("arithmetic", ["--env-config", "nowhere.yaml"], "--env-config nowhere.yaml: no such file."),
    ("arithmetic", ["--env-config", '{"arithmetic": 3}'], "the value of 'arithmetic' must be a JSON object"),
    ("arithmetic", ["--env-config", '{"arithmetic": {"split": "train"}}'], "never runs out of questions: set --limit"),
    ("arithmetic", ["--samples", "0"], "samples=0: must be an integer >= 1."),
    ("arithmetic", ["--samples", "2", "--temperature", "0"], "samples=2: all samples are equal at temperature 0"),
    ("arithmetic", ["--seed", "-1"], "seed=-1: must be an integer from 0 to 2**32 - 1."),
    ("arithmetic", ["--max-context-tokens", "50"], "leaves no room for a response within"),
    ("arithmetic", ["--model", "/nowhere/model"], "'/nowhere/model': no such folder"),
    ("arithmetic", ["--model", "/"], "/ is neither a Hugging Face model (it has no config.json) nor a checkpoint"),
    ("", [], "There is no task: name one with --tasks or --suite."),
    ("", ["--suite", "maths"], "Unknown suite 'maths': did you mean 'math'?"),
    ("arithmetic", ["--entropies", "--repetition-penalty", "1.1"], "repetition_penalty=1.1: the engine cannot"),
    ("arithmetic", ["--temperature", "0", "--top-k", "5"], "top_k=5: the likeliest token wins at temperature 0"),
])  # fmt: skip
def test_what_is_wrong_is_said_before_an_engine_starts(arguments, no_engine, capsys, tasks, more, message):
    command = [*arguments(tasks=tasks, env_config="{}"), *more]
    assert run_command("evaluate", command) == 2
    error = capsys.readouterr().err.strip().splitlines()[-1]
    assert error.startswith("error: ")
    assert message in error


def test_what_an_engine_refuses_is_one_sentence(arguments, capsys):
    assert run_command("evaluate", [*arguments(), "--engine", "vlm"]) == 2
    assert capsys.readouterr().err.startswith("error: engine='vlm' is unknown")


def test_a_tool_that_does_not_start_is_one_sentence(arguments, no_engine, monkeypatch, capsys):
    def prepare(_tool):
        raise BrokenToolError("no sandbox here")

    monkeypatch.setattr(PythonTool, "prepare", prepare)
    assert run_command("evaluate", [*arguments()]) == 2
    assert capsys.readouterr().err == "error: no sandbox here\n"


def test_why_a_tool_is_broken_is_told_once(arguments, monkeypatch, caplog):
    async def run(*_call):
        raise BrokenToolError("no sandbox here")

    monkeypatch.setattr(PythonTool, "run", run)
    assert run_command("evaluate", arguments()) == 0
    [warning] = caplog.messages
    assert "the tool 'python' raised BrokenToolError: no sandbox here (" in warning


@pytest.fixture(scope="module")
def finished(model_folder, tmp_path_factory):
    """A finished evaluation: its command, folder and summary."""
    folder = tmp_path_factory.mktemp("finished")
    more = ["--samples", "2", "--limit", "10"]
    command = [*scripted_command(model_folder, folder), *more]
    assert run_command("evaluate", command) == 0
    return Namespace(command=command, folder=folder, summary=json.loads((folder / "summary.json").read_text()))


def test_the_record_has_every_turn_and_every_answer(finished):
    found = recorded(finished.folder)
    assert [(q.facts.number, [t.agent_id for t in q.tree.trajectories]) for q in found] == [
        (number, ["0", "1"]) for number in range(10)
    ]
    rows = samples(finished.folder)
    question, first = found[0], rows[0][1]
    assert (question.tree.question_id, question.facts.purpose) == (FIRST.question_id, "benchmark")
    assert (first.question, first.answers, first.ability) == (FIRST.messages[-1][1], list(FIRST.answers), "math")
    assert first.task == "arithmetic"
    assert question.prompt_text.endswith(f"{first.question}<|im_end|>\n<|im_start|>assistant\n")
    turns = [placed for one in found for placed in one.turns()]
    called = [placed for placed in turns if placed.turn.tool_call]
    assert {placed.turn.tool_call.status for placed in called} == {"ok", "error"}
    computed = next(placed for placed in called if placed.turn.tool_call.status == "ok")
    assert (computed.text.text, computed.turn.tool, len(computed.turn.token_ids)) == (CALL, "python", len(CALL))
    assert "5" in computed.text.tool_output
    answered = {
        placed.text.text
        for placed in turns
        if placed.trajectory.stop_reason == "answer" and placed.own + 1 == len(placed.trajectory.turns)
    }
    assert answered == {f"<answer> \\boxed{{{ANSWER}}} </answer>"}
    assert {answer.answer for sample, answer in rows if sample.stop_reason == "answer"} == {ANSWER}
    assert all(answer.exact_match == sample.accuracy for sample, answer in rows)


def test_the_summary_says_what_was_run_and_every_figure(finished):
    summary = finished.summary
    assert summary["command"].startswith("rllib-arpo evaluate --model ")
    assert {"commit", "machine", "versions", "time", "seconds", "settings"} <= summary.keys()
    assert summary["settings"]["samples"] == 2
    (row,) = summary["arms"]
    assert (row["task"], row["questions"], row["samples"]) == ("arithmetic", 10, 2)
    calls = [turn for sample, _ in samples(finished.folder) for turn in sample.turns if turn.tool_call]
    found = row["metrics"]["tool_calls"]
    assert (found["value"], found["num_questions"], found.keys()) == (
        len(calls) / 20, 10, {"value", "low", "high", "num_questions"},
    )  # fmt: skip


def test_another_task_joins_the_folder_and_nothing_is_asked_again(finished, monkeypatch, tmp_path):
    folder = shutil.copytree(finished.folder, tmp_path / "copy")
    asked = []
    ask = runner.ask

    def recorded_ask(arm, numbers, *args, **kwargs):
        asked.append((arm.task, len(numbers)))
        return ask(arm, numbers, *args, **kwargs)

    monkeypatch.setattr(runner, "ask", recorded_ask)
    assert run_command("evaluate", [*finished.command, "--output", str(folder), "--tasks", "arithmetic,trails"]) == 0
    assert asked == [("trails", 10)]
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["arms"][:1] == finished.summary["arms"][:1]


def test_a_checkpoint_beside_its_base(arguments, model_folder, tmp_path, capsys):
    """The checkpoint holds the base itself: the same samples, so that no metric differs."""
    checkpoint = tmp_path / "run" / "checkpoint_000001"
    shutil.copytree(model_folder, checkpoint / MODULE / "huggingface")
    write_checksums(str(checkpoint), LocalFileSystem())
    command = [*arguments("--samples", "2", "--limit", "3"), "--model", str(checkpoint)]
    exports = [models.resolve_models([str(checkpoint)], tmp_path / d, d)[0].path for d in ("bfloat16", "float32")]
    assert [AutoConfig.from_pretrained(path).dtype for path in exports] == [torch.bfloat16, torch.float32]
    assert run_command("evaluate", command) == 0
    summary = json.loads((tmp_path / "out" / "summary.json").read_text())
    assert [row["label"] for row in summary["arms"]] == ["llama", "checkpoint_000001"]
    (difference,) = summary["differences"]
    ends = {(e["value"], e["low"], e["high"]) for name, e in difference["metrics"].items() if name != "f1"}
    assert ends == {(0.0, 0.0, 0.0)}
    assert list((tmp_path / "out").glob("exported-*")) == []
    # The run goes on and writes other weights to the same place: these are not the folder's any more.
    config = checkpoint / MODULE / "huggingface" / "config.json"
    config.write_text(config.read_text().replace("{", '{"changed": true,', 1))
    write_checksums(str(checkpoint), LocalFileSystem())
    assert run_command("evaluate", command) == 2
    assert "checkpoint_000001 arithmetic with model_fingerprint=" in capsys.readouterr().err
    # It is still being written.
    (checkpoint / "checksums.json").unlink()
    config.write_text(config.read_text().replace("true", "false", 1))
    assert run_command("evaluate", command) == 2
    assert "checksums.json" in capsys.readouterr().err


def test_knowledge_has_f1_and_exact_match_over_aliases(arguments, tmp_path):
    """The model answers "the red Barn": an alias, half of an alias, nothing of the answer; and mathematics beside."""
    answers = ["a stable<|answer_split|>\\boxed{Red barn}", "red mill", "blue", "3"]
    rows = [parquet_row("Where?", answer) | {"ability": "qa"} for answer in answers[:3]] + [
        parquet_row("What is 1 + 2?", answers[3])
    ]
    data = parquet(tmp_path / "qa.parquet", rows)
    reply = byte_tokenizer().encode("<answer> \\boxed{the red Barn} </answer>", add_special_tokens=False)
    command = arguments(
        tasks="parquet",
        engine_kwargs=json.dumps({"vocab_size": 259, "replies": [reply]}),
        env_config=json.dumps({"parquet": {"tools": ["python"]}}),
        data=f"parquet={data}",
    )
    assert run_command("evaluate", [*command]) == 0
    found = samples(tmp_path / "out")
    assert [(answer.exact_match, answer.f1, sample.accuracy) for sample, answer in found] == [
        (1.0, 1.0, 1.0),
        (0.0, 0.5, 0.0),
        (0.0, 0.0, 0.0),
        (0.0, None, 0.0),
    ]
    metrics = json.loads((tmp_path / "out" / "summary.json").read_text())["arms"][0]["metrics"]
    assert (metrics["f1"]["value"], metrics["f1"]["num_questions"]) == (0.5, 3)
    assert (metrics["exact_match"]["value"], metrics["exact_match"]["num_questions"]) == (0.25, 4)


def test_a_world_without_right_answers_has_its_accuracy_and_no_f1(arguments, tmp_path):
    """Some samples open the safe, some do not; some answer, some call until their limit."""
    replies = ['<turn> {"digits": "3"} </turn>', "<answer> \\boxed{open} </answer>"]
    (tmp_path / "rows.jsonl").write_text('{"prompt": "Open it.", "code": "3"}\n' * 4)
    tokens = [byte_tokenizer().encode(text, add_special_tokens=False) for text in replies]
    world = {"path": str(tmp_path / "rows.jsonl"), "world": "tests.helpers.safe:Safe"}
    command = arguments(
        tasks="rows",
        engine_kwargs=json.dumps({"vocab_size": 259, "replies": tokens}),
        env_config=json.dumps({"rows": world}),
    )
    assert run_command("evaluate", [*command]) == 0
    found = samples(tmp_path / "out")
    assert {(sample.accuracy, answer.exact_match, answer.f1) for sample, answer in found} == {
        (0.0, 0.0, None),
        (1.0, 1.0, None),
    }
    assert {answer.answer for _, answer in found} == {None, "open"}


def test_names_are_as_short_as_they_can_be():
    assert models.short_labels(["/a/x/c1", "/a/y/c1", "org/m", "smollm2-135m"]) == {
        "/a/x/c1": "x/c1",
        "/a/y/c1": "y/c1",
        "org/m": "m",
        "smollm2-135m": "smollm2-135m",
    }
