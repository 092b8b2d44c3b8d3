"""Metrics of an arm by hand, and the table that shows them."""

import io
from dataclasses import replace
from typing import Any

import pytest
from rich.console import Console

from rllib_arpo.core.tree import StopReason, ToolCall, ToolStatus, Trajectory, Turn
from rllib_arpo.evaluation.metrics import arm_metrics, differences
from rllib_arpo.evaluation.report import TaskReport, largest_share, print_report
from rllib_arpo.record.question import BenchmarkAnswer, QuestionFacts, RecordedQuestion
from tests.helpers.trees import make_trajectory, make_tree, make_turn

Sample = tuple[Trajectory, BenchmarkAnswer]
RIGHT = {"accuracy": 1.0, "reward": 1.0, "exact_match": 1.0}


def sample(number: int = 0, **changes: Any) -> Sample:
    """A right answer in one turn of nine tokens, with these changes."""
    values = RIGHT | {"f1": None, "format_valid": True, "stop_reason": "answer", "turns": [turn()]} | changes
    trajectory = make_trajectory(
        str(number), values["turns"], values["reward"], stop_reason=StopReason(values["stop_reason"])
    )
    scores = values["exact_match"], values["f1"]
    answer = BenchmarkAnswer("gsm8k", "m", "tools", "abc", "?", ["1"], "math", 0, None, *scores)
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


def test_metrics_by_hand():
    found = arm_metrics(FIRST)
    assert found.question_ids == ("q0", "q1", "q2")
    assert found.commits == ("abc",)
    values = {
        name: round(estimate.value, 6) for name, estimate in found.estimates().items() if estimate.value is not None
    }
    assert values == {
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
    assert found.estimates()["f1"].value is None


def test_f1_is_over_the_questions_that_have_one():
    found = arm_metrics([question(0, wrong(f1=0.5)), question(1, sample()), question(2, wrong(f1=0.0))]).estimates()
    assert (found["f1"].value, found["f1"].num_questions) == (0.25, 2)
    assert found["pass_at_1"].num_questions == 3


def test_differences_are_second_minus_first_on_the_same_questions():
    better = [question(number, sample(0), sample(1), sample(2)) for number in range(3)]
    found = differences(arm_metrics(FIRST), arm_metrics(better))
    assert found["pass_at_1"].value == pytest.approx(5 / 9)
    assert found["response_tokens"].value == pytest.approx(9 - 102 / 9)
    with pytest.raises(ValueError, match="different questions"):
        differences(arm_metrics(FIRST), arm_metrics(better[:2]))


def shown(report: TaskReport) -> str:
    file = io.StringIO()
    print_report([report], Console(file=file))
    return file.getvalue()


def test_the_table_without_a_terminal():
    better = [question(number, sample(0), sample(1), sample(2)) for number in range(3)]
    first, second = arm_metrics(FIRST), arm_metrics(better)
    text = shown(
        TaskReport(
            task="gsm8k",
            num_questions=3,
            num_samples=3,
            columns={"base [x] tools": first.estimates(), "trained tools": second.estimates()},
            differences={"trained tools": differences(first, second)},
            reference="base [x] tools",
        )
    )
    lines = [line.strip() for line in text.splitlines()]
    assert lines[0] == "gsm8k: 3 questions, 3 samples each"
    header = next(line for line in lines if "minus" in line)
    assert header.split("  ") and header.startswith("base [x] tools")
    assert "trained tools minus base [x] tools" in header
    row = next(line for line in lines if line.startswith("pass@3"))
    assert row.split() == ["pass@3", "0.667", "[-0.768,", "2.101]", "1.000", "=", "+0.333", "[-1.101,", "+1.768]"]
    assert "F1" not in text
    assert "pass@2" not in text
    assert "none of 3 questions is compatible with a share of up to 0.632" in text
    assert "Warning" not in text
    assert "\x1b" not in text


def test_one_question_is_shown_without_an_interval_and_unfinished_samples_with_a_warning():
    row = arm_metrics([question(0, wrong(stop_reason="broken_tool"))]).estimates()
    text = shown(TaskReport("gsm8k", 1, 1, {"base tools": row}, {}, "base tools"))
    line = next(line for line in text.splitlines() if "pass@1" in line)
    assert line.split() == ["pass@1", "0.000"]
    assert "No interval: it takes two questions." in text
    assert "Warning: some trajectories were not finished" in text
    assert "paired difference" not in text


def test_the_largest_share_that_goes_unseen():
    assert largest_share(50) == pytest.approx(0.0582, abs=1e-4)
    assert (1 - largest_share(50)) ** 50 == pytest.approx(0.05)
