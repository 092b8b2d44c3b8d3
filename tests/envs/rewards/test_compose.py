import asyncio
import sys
from dataclasses import replace

import pytest

from rllib_arpo.envs.errors import BrokenToolError, ContractError
from rllib_arpo.envs.question import Question
from rllib_arpo.envs.rewards import FinishedPath, Score, hierarchical, make_scorer

BOTH = frozenset({"search", "python"})
QUESTION = Question("q", (("user", "Where is the Louvre?"),), ("Paris",), "qa", "here")


def path(answer: str | None = "Paris", **changes) -> FinishedPath:
    return FinishedPath(**{"question": QUESTION, "turns": ("text",), "format_valid": True, "answer": answer, **changes})


def score(finished: FinishedPath, **keys) -> Score:
    return asyncio.run(make_scorer(**keys)(finished))


@pytest.mark.parametrize(
    ("format_valid", "accuracy", "executed", "expected"),
    [
        (False, 1.0, BOTH, -1.0),
        (True, 0.0, BOTH, 0.0),
        (True, 1.0, set(), 1.0),
        (True, 1.0, {"python"}, 1.0),
        (True, 1.0, BOTH, 1.1),
        (True, 0.5, BOTH, 0.6),
        (True, 0.5, {*BOTH, "browse"}, 0.6),
    ],
)
def test_the_hierarchical_reward(format_valid, accuracy, executed, expected):
    finished = path(format_valid=format_valid, accuracy=accuracy, executed=frozenset(executed))
    assert hierarchical(finished) == pytest.approx(expected, abs=1e-12)


NUMBER = Question("q", (("user", "2024 - 4048"),), ("-2024",), "math", "here")
NORTH = replace(QUESTION, answers=("Paris Nord",))


@pytest.mark.parametrize(
    ("question", "answer", "keys", "accuracy"),
    [
        # Mathematics is never compared by F1.
        *((NUMBER, "2024", {"qa_metric": metric}, 0.0) for metric in ("f1", "exact_match")),
        *((NUMBER, "-2024.0", {"qa_metric": metric}, 1.0) for metric in ("f1", "exact_match")),
        (QUESTION, "Paris Nord Gare", {"qa_metric": "f1"}, 0.0),
        (NORTH, "Gare Paris Nord", {"qa_metric": "f1"}, 0.8),
        (NORTH, "Gare Paris Nord", {"qa_metric": "exact_match"}, 0.0),
    ],
)
def test_how_answers_are_compared(question, answer, keys, accuracy):
    assert score(path(answer, question=question), **keys) == Score(pytest.approx(accuracy), pytest.approx(accuracy))


def brevity(finished: FinishedPath) -> float:
    return -float(len(finished.turns))


async def slow_brevity(finished: FinishedPath) -> float:
    await asyncio.sleep(0)
    return brevity(finished)


def nothing(finished: FinishedPath) -> float:
    return float("nan")


async def broken(finished: FinishedPath) -> float:
    raise BrokenToolError("the reward's server is away")


def unread(finished: FinishedPath) -> float:
    return float(finished.answer)


def leaving(finished: FinishedPath) -> float:
    sys.exit(2)


OWN = f"{__name__}:brevity"


def test_a_reward_is_a_name_a_function_or_a_weighted_sum():
    finished = path(turns=("a", "b"), num_tool_calls=1)
    assert score(finished) == score(finished, reward="accuracy") == Score(1.0, 1.0)
    assert score(finished, reward=OWN) == Score(-2.0, 1.0)
    assert score(finished, reward=f"{__name__}:slow_brevity") == Score(-2.0, 1.0)
    assert score(finished, reward=brevity) == score(finished, reward={brevity: 1.0}) == Score(-2.0, 1.0)
    weights = {"hierarchical": 1.0, "valid_format": 0.5, "tool_calls": -0.25, OWN: 0.125}
    assert score(finished, reward=weights) == Score(1.0 + 0.5 - 0.25 - 0.25, 1.0)


@pytest.mark.parametrize(
    ("keys", "error", "sentence"),
    [
        ({"reward": nothing}, ValueError, "The reward 'nothing' must be a finite number, not nan."),
        ({"reward": broken}, BrokenToolError, "the reward's server is away"),
        ({"reward": leaving}, ContractError, "The reward 'leaving' raises SystemExit: 2."),
        ({"reward": unread}, ContractError,
         "The reward 'unread' raises ValueError: could not convert string to float: 'Paris'."),
    ],
)  # fmt: skip
def test_what_a_reward_may_not_do(keys, error, sentence):
    with pytest.raises(error) as raised:
        score(path("Paris"), **keys)
    assert str(raised.value) == sentence
