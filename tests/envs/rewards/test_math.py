import asyncio
import json
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from rllib_arpo.envs.errors import BrokenToolError
from rllib_arpo.envs.question import Question
from rllib_arpo.envs.rewards import math_accuracy, solved_math_accuracy
from rllib_arpo.envs.rewards.mathematics import accuracy as math
from rllib_arpo.envs.rewards.mathematics.text import as_number, clean, read_quantity
from tests.envs.rewards.hostile import GOLD, hostile_answers
from tests.helpers.processes import descendants, eventually

TABLE = Path(__file__).with_name("math_pairs.tsv")
PATIENT = (math.Lane(30.0, 60.0, 2),)
HASTY = (math.Lane(0.02, 0.3, 4), math.Lane(0.05, 0.5, 2))


def sections() -> dict[str, list[tuple[str, str, str]]]:
    """Heading of the table -> its rows: (verdict, gold, answer)."""
    found: dict[str, list] = {}
    for line in TABLE.read_text(encoding="utf-8").splitlines()[1:]:
        if line.startswith("# "):
            rows = found.setdefault(line[2:], [])
        else:
            rows.append(tuple(line.split("\t")))
    return found


def accuracies(pairs, lanes, monkeypatch) -> list[float]:
    """The verdicts on (gold, answer) pairs, compared at once."""

    async def compare():
        return await asyncio.gather(*(math_accuracy(answer, [gold]) for gold, answer in pairs))

    monkeypatch.setattr(math, "LANES", lanes)
    return asyncio.run(compare())


@pytest.mark.parametrize("section", list(sections()))
def test_the_table_of_pairs(section, monkeypatch):
    rows = sections()[section]
    found = accuracies([row[1:] for row in rows], PATIENT, monkeypatch)
    wrong = [row for row, accuracy in zip(rows, found, strict=True) if (row[0] == "equal") != (accuracy == 1.0)]
    assert wrong == []


@pytest.mark.parametrize("text", ["＼ｂｏｘｅｄ｛１２｝", "（" * 21 + "１" + "）" * 21, "１" * 1001])
def test_wide_characters_are_read_as_ascii_before_anything_is_refused(text):
    assert clean("＄１２＄") == "12"
    assert clean(text) is None


def test_any_gold_answer_counts():
    assert asyncio.run(math_accuracy("0.5", ["7", "1/2"])) == 1.0
    assert asyncio.run(math_accuracy("0.5", ["7", "8"])) == 0.0


@pytest.mark.parametrize(
    ("text", "value"),
    [("1/2", 0.5), ("\\frac12", 0.5), ("-1\\frac{1}{2}", -1.5), ("1,234.5", 1234.5), ("3 1/2", 3.5), (".5", 0.5)],
)
def test_plain_numbers(text, value):
    assert as_number(text) == value


@pytest.mark.parametrize("text", ["1 2", "1,2", "12 34", "1/0", "x", "", "1e9999", "9" * 201, "١", "1.2.3", "--1"])
def test_no_plain_numbers(text):
    assert as_number(text) is None


@pytest.mark.parametrize(
    ("text", "number", "unit", "percent"),
    [
        ("5 \\text{ cm}^2", 5, "centimeter^2", False),
        ("\\$18.90", 18.9, "dollar", False),
        ("2 million dollars", 2_000_000, "dollar", False),
        ("50\\%", 50, "", True),
        ("5x", None, "", False),
    ],
)
def test_quantities(text, number, unit, percent):
    quantity = read_quantity(text)
    assert (quantity.number and float(quantity.number), quantity.unit, quantity.percent) == (number, unit, percent)


@pytest.mark.slow
def test_hostile_answers_are_wrong_and_leave_no_process_behind(monkeypatch):
    hostile = hostile_answers()
    assert len(set(hostile)) > 100
    assert accuracies([(GOLD, "\\pi + \\pi")], PATIENT, monkeypatch) == [1.0]  # starts the worker
    before = len(descendants())
    monkeypatch.setattr(math, "MEMORY_MB", 128)
    found = accuracies([(GOLD, answer) for answer in hostile], HASTY, monkeypatch)
    assert [answer[:80] for answer, accuracy in zip(hostile, found, strict=True) if accuracy] == []
    # What was killed last may still be ending.
    assert eventually(lambda: len(descendants()) <= before, patience_s=10.0)
    assert accuracies([(GOLD, "\\pi + \\pi")], PATIENT, monkeypatch) == [1.0]


def test_a_comparison_that_never_ends_is_killed():
    begin = time.monotonic()
    assert asyncio.run(math_accuracy("9^{9^{9^{9}}}", [GOLD])) == 0.0
    assert time.monotonic() - begin < 30  # it starts a worker, on a busy machine


async def test_neighbours_of_hostile_answers_get_their_verdicts(monkeypatch):
    lanes = (math.Lane(5.0, 10.0, 4), math.Lane(0.1, 0.5, 1))
    monkeypatch.setattr(math, "LANES", lanes)
    honest = [math_accuracy(f"\\sqrt{{{n * n * 2}}}", [f"{n}\\sqrt{{2}}"]) for n in range(2, 10)]
    found = await asyncio.gather(*(math_accuracy("\\boxed{", [GOLD]) for _ in range(4)), *honest)
    assert found == [0.0] * 4 + [1.0] * 8


#: The worker with a comparison that does what is filled in, and without SymPy, which takes long to load.
STAND_IN = """
import os, sys, time, types
sys.path.insert(0, {folder!r})
import mathematics
sys.path.pop(0)
mathematics.algebra = sys.modules["mathematics.algebra"] = types.ModuleType("algebra")
mathematics.algebra.same = None
mathematics.restating = sys.modules["mathematics.restating"] = types.ModuleType("restating")
from mathematics import forms
def equal(gold, answer, same):
    {action}
forms.equal = equal
"""


def with_stand_in(monkeypatch, action: str) -> None:
    folder = str(Path(math.__file__).parents[1])
    monkeypatch.setattr(math, "SETUP", STAND_IN.format(folder=folder, action=action))


@pytest.mark.parametrize(
    ("action", "accuracy"),
    [("return True", 1.0), ("raise KeyError('x')", 0.0), ("os._exit(3)", 0.0), ("print('equal'); return False", 0.0)],
)
def test_a_comparison_that_fails_is_a_wrong_answer(monkeypatch, action, accuracy):
    with_stand_in(monkeypatch, action)
    assert accuracies([("y", "x")], PATIENT, monkeypatch) == [accuracy]


def test_an_error_of_the_guard_against_restating_is_not_the_answers(monkeypatch):
    fails = "mathematics.restating.restates = lambda *_: (1 / 0 for _ in '.')"
    with_stand_in(monkeypatch, f"mathematics.algebra.same = lambda *_: True; {fails}; return same(gold, answer)")
    monkeypatch.setattr(math, "LANES", PATIENT)
    assert asyncio.run(math_accuracy("x", ["y"], "Simplify $x^2$.")) == 1.0


def test_a_comparison_that_waits_for_the_processor_gets_its_verdict(monkeypatch):
    with_stand_in(monkeypatch, "time.sleep(0.5); return True")
    assert accuracies([("y", "x")], [replace(math.LANES[0], wall_s=60.0)], monkeypatch) == [1.0]


def test_a_comparing_process_that_does_not_start_is_a_broken_tool(monkeypatch):
    monkeypatch.setattr(math, "SETUP", "import there_is_no_math_verify")
    with pytest.raises(BrokenToolError, match="did not start"):
        asyncio.run(math_accuracy("x", ["y"]))


def test_the_worker_loads_the_algebra_and_nothing_of_this_package():
    code = math.SETUP + "import json; print(json.dumps(sorted(name.split('.')[0] for name in sys.modules)))"
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=True)
    loaded = set(json.loads(done.stdout))
    assert loaded >= {"mathematics", "sympy", "math_verify"}
    assert loaded & {"rllib_arpo", "ray", "torch"} == set()


@pytest.mark.parametrize(
    ("text", "gold", "answer", "accuracy"),
    [
        ("What is 12 * 31 - 5?", "367", "x = 367.0", 1.0),
        ("What is 12 * 31 - 5?", "367", "12 * 31 - 5", 0.0),
        ("What is 12 * 31 - 5?", "367", "x = 12 * 31 - 5", 0.0),
        ("What is $2^{10}$?", "1024", "2^{10}", 0.0),
        ("Compute $\\sum_{k=1}^{3} k\\pi$.", "6\\pi", "\\sum_{k=1}^{3} k\\pi", 0.0),
        ("Compute $\\sum_{k=1}^{3} k\\pi$.", "6\\pi", "6\\pi", 1.0),
        ("Simplify $\\sqrt{12}$.", "2\\sqrt{3}", "\\sqrt{12}", 0.0),
        ("Simplify $\\sqrt{12}$.", "2\\sqrt{3}", "2\\sqrt3", 1.0),
        ("Simplify ＼ｓｑｒｔ｛１２｝.", "2\\sqrt{3}", "\\sqrt{12}", 0.0),
        ("Factor $x^2 - 1$.", "(x-1)(x+1)", "x^2-1", 0.0),
        ("Factor $x^2 - 1$.", "(x-1)(x+1)", "(x+1)(x-1)", 1.0),
        ("Is $\\text{(A)}$ or $\\text{(B)}$ right?", "B", "\\text{(B)}", 1.0),
        ("Reduce $\\frac{6}{8}$.", "\\frac{3}{4}", "6/8", 0.0),
        ("Reduce 6/8.", "\\frac{3}{4}", "\\frac{06}{8}", 0.0),
        ("Reduce 6/8.", "\\frac{3}{4}", "\\frac{12}{16}", 0.0),
        ("Write 3/8 as a decimal.", "0.375", "6/16", 0.0),
        ("Write $0.\\overline{3}$ as a fraction.", "\\frac{1}{3}", "0.\\overline{33}", 0.0),
        ("Write $0.\\overline{3}$ as a fraction.", "\\frac{1}{3}", "1/3", 1.0),
        ("Write $\\frac{1}{3}$ as a decimal.", "0.\\overline{3}", "0.\\overline{33}", 1.0),
        ("He has 2 of 4 apples. Which share is that?", "0.5", "2/4", 1.0),
        ("Write 75% as a fraction.", "\\frac{3}{4}", "75.0\\%", 0.0),
        ("Write 0.75 as a fraction.", "\\frac{3}{4}", ".750", 0.0),
        ("Write 75% as a fraction.", "\\frac{3}{4}", "0.75", 1.0),
        ("What is larger, 2 or 3?", "3", "3.0", 1.0),
        ("Show that $\\frac{10}{2} = 5$ by evaluation.", "5", "5", 1.0),
        ("Half of them, 1 of 2, were red. Which share of all 8 is that?", "0.5", "\\frac{1}{2}", 1.0),
        ("Express eleven in base 2.", "1011", "1011_2", 1.0),
        ("What is eleven?", "11", "11_2", 0.0),
        ("Solve $x^2 < 4$.", "(-2,2)", "-2<x<2", 1.0),
        ("Where do they meet?", "(1,2)", "(x,y)=(1,2)", 1.0),
    ],
)
def test_the_question_in_the_box_is_no_answer(monkeypatch, text, gold, answer, accuracy):
    monkeypatch.setattr(math, "LANES", PATIENT)
    question = Question("q", (("user", text),), (gold,), "math", "here")
    assert asyncio.run(solved_math_accuracy(answer, question)) == accuracy


#: Question, gold answer: answers that only restate the question, and answers that do not.
RESTATED = {
    ("Simplify $\\sqrt{12}$.", "2\\sqrt{3}"): (
        [
            "\\sqrt{12}+0", "(\\sqrt{12})", "12^{1/2}", "1\\cdot\\sqrt{12}", "\\sqrt{6+6}", "\\sqrt{4\\cdot 3}",
            "\\frac{2\\sqrt{12}}{2}", "|\\sqrt{12}|", "-(-\\sqrt{12})", "\\frac{12}{\\sqrt{12}}", "12^{0.5}",
            "e^{\\ln \\sqrt{12}}", "\\sqrt{3}+\\sqrt{12}-\\sqrt{3}", "x=\\sqrt{12}", "\\sqrt{3}\\sqrt{4}", "144^{1/4}",
            "\\frac{1}{2}\\sqrt{48}", "\\sqrt{27}-\\sqrt{3}", "\\exp(\\frac{1}{2}\\ln 12)", "4\\sin(\\pi/3)",
        ],
        ["2\\sqrt3", "\\sqrt{3}\\cdot 2", "2\\cdot 3^{1/2}", "\\sqrt{3}+\\sqrt{3}"],
    ),
    ("Factor x^2-5x+6.", "(x-2)(x-3)"): (
        ["6-5x+x^2", "(x^2-5x+6)", "x(x-5)+6", "x^2-4x-x+6", "2(x^2-5x+6)/2", "-(5x-6-x^2)", "6+x^2-5x+0"],
        ["(x-3)(x-2)", "(2-x)(3-x)"],
    ),
    ("Expand $(x-2)(x-3)$.", "x^2-5x+6"): (["(x-3)(x-2)", "(3-x)(2-x)"], ["6-5x+x^2"]),
    ("Simplify $x+1+x+2$.", "2x+3"): (["x+x+2+1", "(x+1)+(x+2)"], ["3+2x"]),
    ("Rationalize $\\frac{1}{\\sqrt{2}}$.", "\\frac{\\sqrt{2}}{2}"): (["1/\\sqrt2", "2^{-1/2}"], ["\\frac12\\sqrt2"]),
    ("Simplify $\\frac{x^2-1}{x-1}$.", "x+1"): (["\\frac{1-x^2}{1-x}"], ["1+x"]),
    ("Solve $x^2<4$.", "-2<x<2"): (["4>x^2", "x^2-4<0", "2x^2<8"], ["(-2,2)", "2>x>-2"]),
    ("Write $2x - y + 1 = 0$ in slope-intercept form.", "y=2x+1"): (["2x-y+1=0", "y-2x-1=0"], ["y=1+2x"]),
    ("Simplify $x^2\\cdot x^3$.", "x^5"): (["x^3x^2"], ["x\\cdot x^4"]),
    ("Simplify $3\\cdot 4\\pi$.", "12\\pi"): (["4\\cdot 3\\pi", "6\\cdot 2\\pi"], ["\\pi\\cdot 12"]),
    ("Simplify $2^3\\cdot 2^4$.", "2^7"): (["8\\cdot 16", "2^{3+4}"], ["2^7", "128"]),
    ("Simplify $(2+3i)(1-i)$.", "5+i"): (["2-2i+3i+3", "(1-i)(2+3i)"], ["i+5"]),
    ("Evaluate $\\sin 60^\\circ$.", "\\frac{\\sqrt{3}}{2}"): (
        ["\\sin 60^\\circ", "\\sin\\frac{\\pi}{3}", "\\cos 30^\\circ"],
        ["\\frac12\\sqrt{3}"],
    ),
    ("Simplify \\begin{align*} \\sqrt{12}+x \\end{align*}", "2\\sqrt{3}+x"): (["x+\\sqrt{12}"], ["x+2\\sqrt3"]),
    ("Simplify \\(\\sqrt{12}+x\\).", "2\\sqrt{3}+x"): (["x+\\sqrt{12}"], ["x+2\\sqrt3"]),
    ("Simplify \\[\\left(\\sqrt{12}\\right)+x\\]", "2\\sqrt{3}+x"): (["x+\\sqrt{12}"], ["x+2\\sqrt3"]),
    ("Which is larger, $\\sqrt{12}$ or 3?", "\\sqrt{12}"): ([], ["\\sqrt{12}", "2\\sqrt{3}", "12^{1/2}"]),
    (
        "What is $\\sqrt{2} A$ for $A = \\begin{pmatrix} 1 \\\\ 2 \\end{pmatrix}$?",
        "\\begin{pmatrix} \\sqrt{2} \\\\ \\sqrt{8} \\end{pmatrix}",
    ): (
        [],
        ["\\left[\\begin{matrix}\\sqrt{2} \\\\ 2\\sqrt{2}\\end{matrix}\\right]"],
    ),
    ("If $x + 1 = y$, what is twice $y$ in $x$?", "2x+2"): ([], ["2(x+1)"]),
}  # fmt: skip


def test_an_answer_that_restates_the_question_earns_nothing(monkeypatch):
    monkeypatch.setattr(math, "LANES", PATIENT)

    async def accuracies():
        questions = {row: Question("q", (("user", row[0]),), (row[1],), "math", "here") for row in RESTATED}
        every = [(row, text) for row, texts in RESTATED.items() for group in texts for text in group]
        found = await asyncio.gather(*(solved_math_accuracy(text, questions[row]) for row, text in every))
        return dict(zip(every, found, strict=True))

    expected = {(row, a): right for row, both in RESTATED.items() for right, texts in enumerate(both) for a in texts}
    assert asyncio.run(accuracies()) == expected
