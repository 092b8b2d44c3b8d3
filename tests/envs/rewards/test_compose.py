import asyncio

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


def test_mathematics_is_never_compared_by_f1():
    question = Question("q", (("user", "2024 - 4048"),), ("-2024",), "math", "here")
    for metric in ("f1", "exact_match"):
        assert score(path("2024", question=question), qa_metric=metric) == Score(0.0, 0.0)
        assert score(path("-2024.0", question=question), qa_metric=metric) == Score(1.0, 1.0)


def test_the_metric_of_questions_of_knowledge():
    assert score(path("Paris Nord Gare", question=QUESTION), qa_metric="f1") == Score(0.0, 0.0)
    question = Question("q", QUESTION.messages, ("Paris Nord",), "qa", "here")
    assert score(path("Gare Paris Nord", question=question), qa_metric="f1").accuracy == pytest.approx(0.8)
    assert score(path("Gare Paris Nord", question=question), qa_metric="exact_match") == Score(0.0, 0.0)


async def shouted(answer: str, question: Question) -> float:
    return float(answer.isupper())


def test_a_task_may_bring_comparisons_of_its_own():
    question = Question("q", (("user", "Shout!"),), ("x",), "shouting", "here")
    assert score(path("HELLO", question=question), comparisons={"shouting": shouted}) == Score(1.0, 1.0)
    assert score(path("hello", question=question), comparisons={"shouting": shouted}) == Score(0.0, 0.0)
    assert score(path("paris"), comparisons={"shouting": shouted}) == Score(1.0, 1.0)


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


OWN = f"{__name__}:brevity"


def test_a_reward_is_a_name_a_function_or_a_weighted_sum():
    finished = path(turns=("a", "b"), num_tool_calls=1)
    assert score(finished) == score(finished, reward="accuracy") == Score(1.0, 1.0)
    assert score(finished, reward=OWN) == Score(-2.0, 1.0)
    assert score(finished, reward=f"{__name__}:slow_brevity") == Score(-2.0, 1.0)
    assert score(finished, reward=brevity) == score(finished, reward={brevity: 1.0}) == Score(-2.0, 1.0)
    weights = {"hierarchical": 1.0, "valid_format": 0.5, "tool_calls": -0.25, OWN: 0.125}
    assert score(finished, reward=weights) == Score(1.0 + 0.5 - 0.25 - 0.25, 1.0)


def test_a_reward_that_is_no_number_is_named():
    with pytest.raises(ValueError, match=r"test_compose:nothing' must be a finite number, not nan"):
        score(path(), reward=f"{__name__}:nothing")
    with pytest.raises(BrokenToolError, match="away"):
        score(path(), reward=f"{__name__}:broken")


def test_a_reward_or_a_comparison_that_raises_ends_the_run_with_its_name():
    async def unreadable(answer, question):
        return float(answer)

    for what, keys in (
        (f"The reward '{__name__}:unread'", {"reward": f"{__name__}:unread"}),
        ("The comparison of qa answers", {"comparisons": {"qa": unreadable}}),
    ):
        with pytest.raises(ContractError) as error:
            score(path("Paris"), **keys)
        assert str(error.value) == f"{what} raises ValueError: could not convert string to float: 'Paris'."


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"reward": "hierarchic"}, "Unknown reward 'hierarchic': did you mean 'hierarchical'?"),
        ({"reward": 3}, "env_config['reward']: 3 is neither a name nor a function."),
        ({"reward": ["accuracy"]}, "env_config['reward']: ['accuracy'] is neither a name nor a function."),
        ({"reward": {}}, "env_config['reward'] names no reward."),
        ({"reward": {"accuracy": float("inf")}}, "env_config['reward']['accuracy'] must be a finite number, not inf."),
        ({"reward": "there.is.no:such"}, "env_config['reward']: 'there.is.no:such' cannot be imported"),
        ({"reward": f"{__name__}:OWN"}, ":OWN' is not a function."),
        ({"qa_metric": "f2"}, "Unknown qa_metric 'f2'"),
        ({"judge": {"model": "m"}}, "env_config['judge'] needs env_config['qa_metric'] = 'judge'."),
        ({"qa_metric": "judge"}, "env_config['judge'] has no 'base_url'."),
        ({"qa_metric": "judge", "judge": {"modell": "m"}}, "'modell': did you mean 'model'?"),
    ],
)
def test_wrong_keys_are_named(keys, message):
    with pytest.raises(ValueError) as error:
        make_scorer(**keys)
    assert message in str(error.value)
