"""Metrics of an arm by hand, and the tables that show them."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from rllib_arpo.core.intervals import average_over_tasks, estimate_all
from rllib_arpo.core.tree import StopReason, ToolCall, ToolStatus, Trajectory, Turn
from rllib_arpo.evaluation.metrics import arm_metrics
from rllib_arpo.evaluation.plan import EvaluationSettings
from rllib_arpo.evaluation.report import method_rows, print_report, task_reports
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


def arm(model: str, task: str = "gsm8k", style: str = "tools", questions: int = 3) -> SimpleNamespace:
    label = f"{model.rpartition('/')[2]} {style}"
    named = SimpleNamespace(name=model)
    return SimpleNamespace(
        model=named, style=style, task=task, name=f"{model} {task} {style}", label=label, numbers=range(questions)
    )


def printed(capsys) -> list[str]:
    """What was printed, without blanks at the ends of lines and lines of blanks."""
    return [line.rstrip() for line in capsys.readouterr().out.splitlines() if line.strip()]


#: One sample a question.
EASY, HARD = np.array([[1.0], [1.0], [1.0], [0.0]]), np.array([[0.5], [0.25], [0.0]])
SCORES = {"gsm8k": "pass_at_1", "hotpotqa": "f1"}


def rows_of(*scores: tuple[str, str, np.ndarray], **methods: str) -> list:
    """The rows of arms with tools, (model, task, scores) each; `methods`: model -> method."""
    arms = [arm(model, task) for model, task, _ in scores]
    metrics = {one.name: {SCORES[one.task]: values} for one, (*_, values) in zip(arms, scores, strict=True)}
    return method_rows(arms, metrics, methods)


def test_a_row_of_a_model():
    (row,) = rows_of(("a/base", "gsm8k", EASY), ("a/base", "hotpotqa", HARD))
    assert (row.label, row.models, row.difference) == ("base tools", ("a/base",), None)
    assert row.scores == estimate_all({"gsm8k": EASY, "hotpotqa": HARD})
    assert row.average == average_over_tasks([EASY, HARD])
    assert (row.average.value, row.average.num_questions) == (0.5, 7)


def test_models_of_a_method_are_its_seeds():
    """Seed means on gsm8k: 0.75 and 0.25, on hotpotqa: 0.25 and 0.75; so the average is 0.5 with either seed."""
    (row,) = rows_of(
        ("x1", "gsm8k", np.repeat(EASY, 3, axis=1)),
        ("x2", "gsm8k", 1 - EASY),
        ("x1", "hotpotqa", HARD),
        ("x2", "hotpotqa", 1 - HARD),
        x1="ARPO",
        x2="ARPO",
    )
    assert (row.label, row.models) == ("ARPO tools", ("x1", "x2"))
    assert [(score.value, score.seed_std) for score in row.scores.values()] == [(0.5, pytest.approx(0.5 / 2**0.5))] * 2
    assert (row.average.value, row.average.seed_std, row.average.low) == (0.5, 0.0, 0.5)


def test_a_method_that_is_called_like_a_model_is_another_row():
    rows = rows_of(("one", "gsm8k", EASY), ("/m/base", "gsm8k", 1 - EASY), one="base")
    assert [(row.label, row.models, row.scores["gsm8k"].value) for row in rows] == [
        ("base tools", ("one",), 0.75),
        ("m/base tools", ("/m/base",), 0.25),
    ]


def test_the_difference_of_the_averages_is_paired():
    """Every question of the second row is better by 0.125: the difference has no spread, though both rows have."""
    both = [(model, plus) for model, plus in (("base", 0.0), ("trained", 0.125))]
    first, second = rows_of(
        *((model, task, v + plus) for model, plus in both for task, v in (("gsm8k", EASY), ("hotpotqa", HARD)))
    )
    assert first.difference is None
    assert (second.difference.value, second.difference.low, second.difference.high) == (0.125, 0.125, 0.125)
    assert second.average.low < second.average.high


def test_the_tables_are_those_of_the_file(capsys):
    arms = [arm("base [x]"), arm("trained")]
    metrics = dict(zip([one.name for one in arms], map(arm_metrics, (FIRST, BETTER)), strict=True))
    rows = rows_of(
        ("base [x]", "gsm8k", EASY),
        ("base [x]", "hotpotqa", HARD),
        ("x1", "gsm8k", np.ones((4, 1))),
        ("x2", "gsm8k", np.ones((4, 1))),
        ("x1", "hotpotqa", 1 - HARD),
        ("x2", "hotpotqa", 1 - HARD / 2),
        x1="ARPO",
        x2="ARPO",
    )
    print_report(task_reports(arms, metrics, EvaluationSettings(samples=3)), rows)
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
