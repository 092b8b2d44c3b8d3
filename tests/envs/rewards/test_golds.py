"""The gold answers of GSM8K and MATH500, against themselves and against each other."""

import asyncio
import itertools
import json
import random
from pathlib import Path

import pytest

from rllib_arpo.envs.rewards import math_accuracy
from rllib_arpo.envs.rewards.mathematics import accuracy as math
from rllib_arpo.envs.rewards.mathematics.text import clean, read_quantity

#: Pairs of different gold answers that are equal: spellings, units.
EQUAL_GOLDS = [
    ("10,\\!080", "10080"),
    ("120", "120^\\circ"),
    ("15", "15\\mbox{ cm}^2"),
    ("30", "30^\\circ"),
    ("36", "36^\\circ"),
    ("36", "\\$36"),
    ("90", "90^\\circ"),
    ("\\frac14", "\\frac{1}{4}"),
]


def golds(name: str) -> list[str]:
    """The answers in a file of shared/data beside the project; the test is skipped where it is not there."""
    places = [folder / "shared/data/benchmarks" / name / "test.jsonl" for folder in Path(__file__).parents]
    files = [path for path in places if path.is_file()] or pytest.skip(f"no shared/data/benchmarks/{name}")
    rows = [json.loads(line) for line in files[0].read_text(encoding="utf-8").splitlines()]
    return [row["answer"].rpartition("####")[2].strip() for row in rows]


@pytest.fixture(autouse=True)
def patience(monkeypatch):
    monkeypatch.setattr(math, "LANES", (math.Lane(30.0, 60.0, 2),))


def verdicts(pairs) -> list[float]:
    async def compare():
        return await asyncio.gather(*(math_accuracy(answer, [gold]) for gold, answer in pairs))

    return asyncio.run(compare())


@pytest.mark.parametrize(("name", "count"), [("gsm8k", 1319), ("math500", 500)])
def test_every_gold_answer_equals_itself_in_several_spellings(name, count):
    answers = golds(name)
    assert len(answers) == count
    for respelled in (str, lambda a: f"${a}$", lambda a: f" \\( {a} \\) ", lambda a: a.replace("\\frac", "\\dfrac")):
        pairs = [(gold, respelled(gold)) for gold in answers]
        assert [pair for pair, verdict in zip(pairs, verdicts(pairs), strict=True) if verdict != 1.0] == []


@pytest.mark.slow
def test_different_gold_answers_are_different():
    answers = sorted(set(golds("math500")))
    numbers = [gold for gold in answers if read_quantity(clean(gold)).number is not None]
    formulas = [gold for gold in answers if gold not in numbers]
    pairs = list(itertools.combinations(numbers, 2))
    pairs += random.Random(0).sample([(a, b) for a in formulas for b in answers if a != b], 100)
    assert [pair for pair, verdict in zip(pairs, verdicts(pairs), strict=True) if verdict] == EQUAL_GOLDS
