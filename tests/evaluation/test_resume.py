"""A killed evaluation continues where it stopped, and ends with the results of an undisturbed one."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from rllib_arpo.commands import run_command
from rllib_arpo.evaluation import runner
from rllib_arpo.evaluation.report import SUMMARY
from rllib_arpo.record.question import RecordedQuestion
from tests.evaluation.conftest import recorded
from tests.helpers.trees import assert_same

NUM_QUESTIONS = 60
CONFIG = json.dumps({"arithmetic": {"num_test_questions": NUM_QUESTIONS}})


def num_answered(folder: Path) -> int:
    """Questions in the folder of another process."""
    return len(list(folder.glob("*/trees/question-*.parquet")))


@pytest.mark.slow
def test_a_killed_evaluation_resumes_without_repeating_or_losing_a_question(arguments, tmp_path, monkeypatch):
    killed = tmp_path / "killed"
    command = arguments("--samples", "2", "--questions-in-flight", "3", env_config=CONFIG)
    with_output = [*command, "--output", str(killed)]
    process = subprocess.Popen(
        [sys.executable, "-m", "rllib_arpo", "evaluate", *with_output],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
    )
    while num_answered(killed) < 4 and process.poll() is None:
        time.sleep(0.005)
    process.send_signal(signal.SIGKILL)
    errors = process.communicate()[1]
    assert process.returncode == -signal.SIGKILL, errors
    before = {question.facts.number: question for question in recorded(killed)}
    assert 4 <= len(before) < NUM_QUESTIONS
    assert not (killed / SUMMARY).exists()

    asked = []
    ask = runner.ask

    def recorded_ask(arm, numbers, *args, **kwargs):
        asked.extend(numbers)
        return ask(arm, numbers, *args, **kwargs)

    monkeypatch.setattr(runner, "ask", recorded_ask)
    assert run_command("evaluate", with_output) == 0
    assert asked == sorted(set(range(NUM_QUESTIONS)) - before.keys())
    after = {question.facts.number: question for question in recorded(killed)}
    for number, question in before.items():
        assert_same(after[number].tree, question.tree)

    assert run_command("evaluate", [*command, "--output", str(tmp_path / "whole")]) == 0
    assert len(after) == NUM_QUESTIONS
    assert list(map(sampled, after.values())) == list(map(sampled, recorded(tmp_path / "whole")))
    # A third time there is nothing to ask.
    asked.clear()
    assert run_command("evaluate", with_output) == 0
    assert asked == []


def sampled(question: RecordedQuestion) -> list:
    """All of a question but the times."""
    turns = [(one.turn.token_ids.tolist(), one.turn.observation.tolist(), one.text) for one in question.turns()]
    ends = [(t.agent_id, t.stop_reason, t.accuracy, t.format_valid) for t in question.tree.trajectories]
    return [question.tree.prompt.tolist(), ends, question.answers, question.tree.returns().tolist(), turns]
