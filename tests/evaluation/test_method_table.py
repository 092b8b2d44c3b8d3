"""Methods by tasks, by hand."""

import io

import numpy as np
import pytest
from rich.console import Console

from rllib_arpo.core.intervals import average_over_tasks, estimate_all
from rllib_arpo.evaluation.method_table import Scores, as_json, method_table, print_method_table

METRICS = {"gsm8k": "pass@1", "hotpotqa": "F1"}
#: One sample a question.
EASY, HARD = np.array([[1.0], [1.0], [1.0], [0.0]]), np.array([[0.5], [0.25], [0.0]])


def scores(model: str, task: str, values: np.ndarray, method: str | None = None) -> Scores:
    return Scores(model, method, "tools", task, values)


def test_a_row_by_hand():
    table = method_table([scores("a/base", "gsm8k", EASY), scores("a/base", "hotpotqa", HARD)], METRICS)
    (row,) = table.rows
    assert (row.label, row.models, row.difference) == ("base tools", ("a/base",), None)
    assert {task: (cell.value, cell.num_questions) for task, cell in row.cells.items()} == {
        "gsm8k": (0.75, 4),
        "hotpotqa": (0.25, 3),
    }
    assert (row.average.value, row.average.num_questions) == (0.5, 7)
    assert row.cells["gsm8k"] == estimate_all({"": EASY})[""]
    assert row.average == average_over_tasks([EASY, HARD])


def test_models_of_a_method_are_its_seeds():
    """Seed means on gsm8k: 0.75 and 0.25, on hotpotqa: 0.25 and 0.75; so the average is 0.5 with either seed."""
    found = method_table(
        [
            scores("x/1", "gsm8k", np.repeat(EASY, 3, axis=1), "ARPO"),
            scores("x/2", "gsm8k", 1 - EASY, "ARPO"),
            scores("x/1", "hotpotqa", HARD, "ARPO"),
            scores("x/2", "hotpotqa", 1 - HARD, "ARPO"),
        ],
        METRICS,
    )
    (row,) = found.rows
    assert (row.label, row.models) == ("ARPO tools", ("x/1", "x/2"))
    assert [cell.value for cell in row.cells.values()] == [0.5, 0.5]
    assert [cell.seed_std for cell in row.cells.values()] == [pytest.approx(0.5 / 2**0.5)] * 2
    assert (row.average.value, row.average.seed_std, row.average.low) == (0.5, 0.0, 0.5)


def test_a_method_that_is_called_like_a_model_is_another_row():
    table = method_table([scores("/m/one", "gsm8k", EASY, "base"), scores("/m/base", "gsm8k", 1 - EASY)], METRICS)
    assert [(row.label, row.models, row.cells["gsm8k"].value) for row in table.rows] == [
        ("base tools", ("/m/one",), 0.75),
        ("m/base tools", ("/m/base",), 0.25),
    ]


def test_the_difference_of_the_averages_is_paired():
    """Every question of the second row is better by 0.125: the difference has no spread, though both rows have."""
    both = [("base", 0.0), ("trained", 0.125)]
    table = method_table(
        [scores(m, task, v + plus) for m, plus in both for task, v in (("gsm8k", EASY), ("hotpotqa", HARD))], METRICS
    )
    first, second = table.rows
    assert first.difference is None
    assert (second.difference.value, second.difference.low, second.difference.high) == (0.125, 0.125, 0.125)
    assert second.average.low < second.average.high


def test_a_row_that_lacks_a_task_of_one_of_its_models_has_no_average():
    table = method_table(
        [
            scores("base", "gsm8k", EASY),
            scores("base", "hotpotqa", HARD),
            scores("1", "gsm8k", EASY, "ARPO"),
            scores("2", "gsm8k", EASY, "ARPO"),
            scores("1", "hotpotqa", HARD, "ARPO"),
            scores("old", "gsm8k", EASY),
        ],
        METRICS,
    )
    assert [(row.label, list(row.cells), row.average is None, row.difference) for row in table.rows] == [
        ("base tools", ["gsm8k", "hotpotqa"], False, None),
        ("ARPO tools", ["gsm8k", "hotpotqa"], True, None),
        ("old tools", ["gsm8k"], True, None),
    ]


def test_the_table_on_the_console():
    table = method_table(
        [
            scores("base [x]", "gsm8k", EASY),
            scores("base [x]", "webwalker", HARD),
            scores("1", "gsm8k", np.ones((4, 1)), "ARPO"),
            scores("2", "gsm8k", np.ones((4, 1)), "ARPO"),
            scores("1", "webwalker", 1 - HARD, "ARPO"),
            scores("2", "webwalker", 1 - HARD / 2, "ARPO"),
            scores("old", "gsm8k", EASY),
        ],
        {"gsm8k": "pass@1", "webwalker": "pass@1"},
    )
    file = io.StringIO()
    print_method_table(table, Console(file=file))
    assert [line.rstrip() for line in file.getvalue().splitlines()] == EXPECTED.splitlines()[1:]


EXPECTED = """
3 methods, 2 tasks

                             gsm8k         webwalker                       average minus
                            pass@1            pass@1          average     base [x] tools
 ────────────────────────────────────────────────────────────────────────────────────────
  base [x] tools             0.750             0.250            0.500                  -
                   [-0.046, 1.546]   [-0.371, 0.871]   [0.118, 0.882]
  ARPO tools               1.000 =             0.812            0.906             +0.406
  (2 models)                          [0.347, 1.278]   [0.673, 1.139]   [-0.057, +0.869]
                                            sd 0.088         sd 0.044
  old tools                  0.750                 -                -                  -
                   [-0.046, 1.546]

average: the unweighted mean of the tasks' scores; =: all questions have this value.
(n models): their mean; sd is the standard deviation between them, which no interval covers.
pass@1 of webwalker: the answer has the words of a right one; no judge is set.
*: the interval of the difference, question by question, does not contain 0.
"""


def test_the_table_as_json():
    table = method_table([scores("base", "gsm8k", EASY), scores("base", "hotpotqa", HARD)], METRICS)
    found = as_json(table)
    assert found["tasks"] == [
        {"task": "gsm8k", "metric": "pass_at_1", "name": "pass@1"},
        {"task": "hotpotqa", "metric": "f1", "name": "F1"},
    ]
    (row,) = found["rows"]
    assert (row["label"], row["models"], row["minus_first"]) == ("base tools", ["base"], None)
    assert {task: estimate["value"] for task, estimate in row["scores"].items()} == {"gsm8k": 0.75, "hotpotqa": 0.25}
    assert row["average"]["value"] == 0.5
