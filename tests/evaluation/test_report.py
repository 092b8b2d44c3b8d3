"""Metrics of an arm by hand, and the tables that show them."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from rllib_arpo.core.intervals import estimate_all
from rllib_arpo.core.tree import StopReason, ToolCall, ToolStatus, Trajectory, Turn
from rllib_arpo.evaluation.metrics import arm_metrics
from rllib_arpo.evaluation.plan import EvaluationSettings
from rllib_arpo.evaluation.report import print_report, task_reports
from rllib_arpo.record.question import BenchmarkAnswer, QuestionFacts, RecordedQuestion
from tests.helpers.approved import assert_approved
from tests.helpers.trees import make_trajectory, make_tree, make_turn

TABLES = Path(__file__).with_name("tables.txt")
Sample = tuple[Trajectory, BenchmarkAnswer]


def sample(number: int = 0, **changes: Any) -> Sample:
    """A right answer in one turn of nine tokens, with these changes."""
    values = {"accuracy": 1.0, "reward": 1.0, "exact_match": 1.0, "f1": None, "format_valid": True} | changes
    turns, ending = changes.get("turns", [turn()]), StopReason(changes.get("stop_reason", "answer"))
    trajectory = make_trajectory(str(number), turns, values["reward"], stop_reason=ending)
    scores = values["exact_match"], values["f1"]
    answer = BenchmarkAnswer("gsm8k", "m", "abc", "?", ["1"], "math", None, *scores)
    return replace(trajectory, accuracy=values["accuracy"], format_valid=values["format_valid"]), answer


def turn(tokens: int = 9, tool_status: str | None = None) -> Turn:
    call = ToolCall("python", ToolStatus(tool_status), 0.0) if tool_status else None
    return replace(make_turn([0] * tokens), tool_call=call)


def wrong(number: int = 0, **changes: Any) -> Sample:
    return sample(number, **{"reward": 0.0, "accuracy": 0.0, "exact_match": 0.0} | changes)


def question(number: int, *samples: Sample) -> RecordedQuestion:
    tree = make_tree([1], [trajectory for trajectory, _ in samples], f"q{number}")
    answers = {trajectory.agent_id: answer for trajectory, answer in samples}
    return RecordedQuestion(QuestionFacts("benchmark", 0, number, 1.0), tree, {}, None, {}, answers=answers)


FIRST = [
    question(0, sample(turns=[turn(2, "ok"), turn(3, "error"), turn(4)]), wrong(1), wrong(2)),
    question(
        1, wrong(stop_reason="token_limit", turns=[turn(30)]), wrong(1), wrong(2, format_valid=False, reward=-1.0)
    ),
    question(2, sample(0), sample(1), sample(2)),
]
BETTER = [question(number, sample(0), sample(1), sample(2)) for number in range(3)]


def test_metrics_by_hand():
    found = estimate_all(arm_metrics(FIRST))
    assert {name: estimate.value for name, estimate in found.items() if name != "f1"} == {
        "pass_at_1": pytest.approx(4 / 9),
        # Two of three samples of the first question hold its right one with probability 2 / 3.
        "pass_at_2": pytest.approx(5 / 9),
        "pass_at_3": pytest.approx(2 / 3),
        "exact_match": pytest.approx(4 / 9),
        "reward": pytest.approx(3 / 9),
        "format_valid": pytest.approx(8 / 9),
        "tool_calls": pytest.approx(2 / 9),
        "tool_calls_failed": pytest.approx(1 / 9),
        "response_tokens": pytest.approx((8 * 9 + 30) / 9),
        "truncated": pytest.approx(1 / 9),
        "masked": 0.0,
    }
    assert found["f1"].value is None
    found = estimate_all(arm_metrics([question(0, wrong(f1=0.5)), question(1, sample()), question(2, wrong(f1=0.0))]))
    assert (found["f1"].value, found["f1"].num_questions, found["pass_at_1"].num_questions) == (0.25, 2, 3)


def arm(model: str, task: str = "gsm8k", questions: int = 3) -> SimpleNamespace:
    named = SimpleNamespace(name=model, label=model)
    return SimpleNamespace(model=named, task=task, name=f"{model} {task}", numbers=range(questions))


def printed(capsys) -> list[str]:
    """What was printed, without blanks at the ends of lines and lines of blanks."""
    return [line.rstrip() for line in capsys.readouterr().out.splitlines() if line.strip()]


def test_the_tables_are_those_of_the_file(capsys):
    arms = [arm("base [x]"), arm("trained")]
    metrics = dict(zip([one.name for one in arms], map(arm_metrics, (FIRST, BETTER)), strict=True))
    print_report(task_reports(arms, metrics, EvaluationSettings(samples=3)))
    found = "".join(f"{line}\n" for line in printed(capsys))
    assert_approved(TABLES, found)


def test_one_question_is_shown_without_an_interval_and_unfinished_samples_with_a_warning(capsys):
    alone = arm("base", questions=1)
    metrics = {alone.name: arm_metrics([question(0, wrong(stop_reason="broken_tool"))])}
    print_report(task_reports([alone], metrics, EvaluationSettings()))
    lines = printed(capsys)
    assert [line.split() for line in lines if "pass@1" in line] == [["pass@1", "0.000"]]
    assert "A single question has no interval." in lines
    assert lines[-1].startswith("Warning: some trajectories did not finish")
