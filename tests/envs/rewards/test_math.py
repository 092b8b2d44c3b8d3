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
from rllib_arpo.envs.rewards.mathematics.text import clean
from tests.envs.rewards.hostile import GOLD, hostile_answers
from tests.helpers.processes import descendants, eventually

TABLE = Path(__file__).with_name("math_pairs.tsv")
RESTATED = TABLE.with_name("math_restated.tsv")
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


GUARD_FAILS = "mathematics.restating.restates = lambda *_: (1 / 0 for _ in '.')"


@pytest.mark.parametrize(
    ("action", "accuracy"),
    [
        ("return True", 1.0),
        ("raise KeyError('x')", 0.0),
        ("os._exit(3)", 0.0),
        ("print('equal'); return False", 0.0),
        # It waits for the processor.
        ("time.sleep(0.5); return True", 1.0),
        # An error of the guard against restating is not the answer's.
        (f"mathematics.algebra.same = lambda *_: True; {GUARD_FAILS}; return same(gold, answer)", 1.0),
    ],
)
def test_a_comparison_that_fails_is_a_wrong_answer(monkeypatch, action, accuracy):
    monkeypatch.setattr(math, "SETUP", STAND_IN.format(folder=str(Path(math.__file__).parents[1]), action=action))
    monkeypatch.setattr(math, "LANES", [replace(math.LANES[0], wall_s=60.0)])
    assert asyncio.run(math_accuracy("x", ["y"], "Simplify $x^2$.")) == accuracy


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


def test_an_answer_that_restates_the_question_earns_nothing(monkeypatch):
    monkeypatch.setattr(math, "LANES", PATIENT)
    rows = [tuple(line.split("\t")) for line in RESTATED.read_text(encoding="utf-8").splitlines()[1:]]

    async def accuracies():
        questions = [Question("q", (("user", text),), (gold,), "math", "here") for _, text, gold, _ in rows]
        pairs = zip(rows, questions, strict=True)
        return await asyncio.gather(*(solved_math_accuracy(row[3], question) for row, question in pairs))

    found = zip(rows, asyncio.run(accuracies()), strict=True)
    assert [row for row, accuracy in found if accuracy != (row[0] == "right")] == []
