"""Evaluations with the scripted engine: quick, and the same whenever they are run."""

import json
from pathlib import Path

import pytest

from rllib_arpo.core.tree import Trajectory
from rllib_arpo.envs.tasks import ArithmeticTask
from rllib_arpo.record.question import BenchmarkAnswer, RecordedQuestion
from rllib_arpo.record.read import questions, record_files
from tests.helpers.models import byte_tokenizer
from tests.helpers.parquet import parquet
from tests.helpers.parquet import row as parquet_row

#: The right answer to the first question.
(ANSWER,) = ArithmeticTask(split="test").question(0).answers
#: What the scripted model says: it computes, rightly or wrongly, answers, or says nothing of use.
CALL = "<python> print(2 + 3) </python>"
REPLIES = (CALL, "<python> 1 / 0 </python>", f"<answer> \\boxed{{{ANSWER}}} </answer>", "no idea")


def scripted_command(model, output, **options) -> list[str]:
    """A command line for the arithmetic task; `options` are its own, with "_" for "-"."""
    tokenizer = byte_tokenizer()
    replies = [tokenizer.encode(reply, add_special_tokens=False) for reply in REPLIES]
    options = {
        "model": model,
        "output": str(output),
        "tasks": "arithmetic",
        "engine": "scripted",
        "engine_kwargs": json.dumps({"vocab_size": 259, "replies": replies}),
        "env_config": json.dumps({"arithmetic": {"num_test_questions": 12}}),
        "max_context_tokens": "2048",
    } | options
    return [part for name, value in options.items() for part in (f"--{name.replace('_', '-')}", value)]


def recorded(folder: Path) -> list[RecordedQuestion]:
    """The questions of all arms, in the order of their numbers."""
    return [question for file in record_files(folder) for question in questions(file)]


def samples_of(question: RecordedQuestion) -> list[tuple[Trajectory, BenchmarkAnswer]]:
    return [(sample, question.answers[sample.agent_id]) for sample in question.tree.trajectories]


def samples(folder: Path) -> list[tuple[Trajectory, BenchmarkAnswer]]:
    return [sample for question in recorded(folder) for sample in samples_of(question)]


@pytest.fixture
def arguments(model_folder, tmp_path):
    """arguments("--samples", "3", tasks="trails") -> a command line that writes into `tmp_path / "out"`."""

    def make(*more: str, model: str = model_folder, **options) -> list[str]:
        return [*scripted_command(model, tmp_path / "out", **options), *more]

    return make


@pytest.fixture
def command(arguments, tmp_path):
    """command(replies, tools=...) -> a command line that asks four questions of knowledge, one after the other."""

    def make(*replies: str, **env_config) -> list[str]:
        tokenizer = byte_tokenizer()
        tokens = [tokenizer.encode(reply, add_special_tokens=False) for reply in replies]
        rows = [parquet_row(f"Question {i}?", "red") | {"ability": "qa"} for i in range(4)]
        return arguments(
            tasks="parquet",
            engine_kwargs=json.dumps({"vocab_size": 259, "replies": tokens}),
            env_config=json.dumps({"parquet": env_config}),
            data=f"parquet={parquet(tmp_path / 'questions.parquet', rows)}",
            questions_in_flight="1",
        )

    return make
