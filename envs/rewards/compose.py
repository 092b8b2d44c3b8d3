"""The rewards of a finished path, and the scorer of `env_config`: it compares answers, and adds weighted rewards up."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from rllib_arpo.envs.errors import BrokenToolError, ContractError, DataError, finite
from rllib_arpo.envs.question import MATH, QA, Comparison, Question
from rllib_arpo.envs.rewards.judge import Judge
from rllib_arpo.envs.rewards.mathematics.accuracy import solved_math_accuracy
from rllib_arpo.envs.rewards.qa import bounded_f1, exact_match
from rllib_arpo.envs.support.loop_thread import raised_by_code
from rllib_arpo.envs.support.texts import first_line
from rllib_arpo.envs.support.validation import check_known, import_named

BAD_FORMAT_REWARD = -1.0
#: Bonus for a right answer if each of these tools was really executed (status OK) on the path.
TOOL_BONUS = 0.1
BONUS_TOOLS = frozenset({"search", "python"})


@dataclass(frozen=True, slots=True)
class FinishedPath:
    """What a reward may know about a finished path.

    Attributes:
        question: what was asked.
        turns: the generated text of every turn, without tool responses.
        format_valid: whether the path keeps the protocol and ends with an answer.
        answer: the answer's text; None unless the format is valid.
        executed: names of the tools that ran without an error.
        num_tool_calls: executed calls, whatever their outcome.
        accuracy: how right the answer is, in [0, 1]; 0 without a valid format.
    """

    question: Question
    turns: tuple[str, ...]
    format_valid: bool
    answer: str | None = None
    executed: frozenset[str] = frozenset()
    num_tool_calls: int = 0
    accuracy: float = 0.0


def hierarchical(path: FinishedPath) -> float:
    """-1 for bad format; 0 for a wrong answer; accuracy + 0.1 * [search AND python were executed] for a right one.

    docs/design.md, "Reward".
    """
    if not path.format_valid:
        return BAD_FORMAT_REWARD
    return path.accuracy + TOOL_BONUS * (path.accuracy > 0 and path.executed >= BONUS_TOOLS)


def accuracy(path: FinishedPath) -> float:
    """The accuracy alone."""
    return path.accuracy


def valid_format(path: FinishedPath) -> float:
    """1 for a valid format, otherwise 0."""
    return float(path.format_valid)


def tool_calls(path: FinishedPath) -> float:
    """The number of executed calls: a cost, with a negative weight."""
    return float(path.num_tool_calls)


#: Rewards a finished path; may be a coroutine function, and may raise `BrokenToolError` to have the path masked.
Reward = Callable[[FinishedPath], "float | Awaitable[float]"]

#: The rewards that `env_config["reward"]` may name.
REWARDS: dict[str, Reward] = {
    "hierarchical": hierarchical,
    "accuracy": accuracy,
    "valid_format": valid_format,
    "tool_calls": tool_calls,
}


def _of_texts(measure: Callable[[str, Sequence[str]], float]) -> Comparison:
    """A function of (answer, gold answers) as a comparison."""

    async def compare(answer: str, question: Question) -> float:
        return measure(answer, question.answers)

    return compare


#: The comparisons of answers to knowledge questions (`env_config["qa_metric"]`): name -> maker of the comparison from
#: `env_config["judge"]`.
QA_METRICS: dict[str, Callable[[Mapping[str, Any]], Comparison]] = {
    "f1": lambda judge: _of_texts(bounded_f1),
    "exact_match": lambda judge: _of_texts(exact_match),
    "judge": Judge.from_config,
}


@dataclass(frozen=True, slots=True)
class Score:
    """The reward of a finished path, and the accuracy of its answer in [0, 1]."""

    reward: float
    accuracy: float

    @classmethod
    def of(cls, reward: float) -> Score:
        """For a reward that also states the accuracy: the part of it between 0 and 1."""
        return cls(reward, min(max(reward, 0.0), 1.0))


@dataclass(frozen=True)
class Scorer:
    """Scores finished paths.

    Attributes:
        comparisons: ability -> how answers are compared.
        terms: (name, weight, function) of each reward in the sum.
    """

    comparisons: Mapping[str, Comparison]
    terms: tuple[tuple[str, float, Reward], ...]

    async def __call__(self, path: FinishedPath) -> Score:
        """Compares the answer and adds the rewards up.

        Raises:
            BrokenToolError: the answer cannot be compared now, through no fault of the policy.
            ContractError: a reward or a comparison raises another error, or returns no finite number.
        """
        ability = path.question.ability
        # Nothing is known to be right where a world, or a reward of the user's, needs no answer.
        if path.format_valid and path.question.answers:
            assert path.answer is not None
            compare = partial(self.comparisons[ability], path.answer, path.question)
            path = dataclasses.replace(path, accuracy=await value_of(f"The comparison of {ability} answers", compare))
        total = 0.0
        for name, weight, reward in self.terms:
            total += weight * await value_of(f"The reward {name!r}", partial(reward, path))
        return Score(total, path.accuracy)


def needs_answers(reward: str | Reward | Mapping[str | Reward, float]) -> bool:
    """Whether a term of `env_config["reward"]` needs right answers."""
    terms: set[Any] = {"hierarchical", "accuracy", hierarchical, accuracy}
    return not terms.isdisjoint(reward if isinstance(reward, Mapping) else [reward])


async def value_of(what: str, function: Callable[[], Any]) -> float:
    """The value of a user's function or coroutine function, as a float. Errors begin with `what`.

    Raises:
        ContractError: it raises another exception than those of `errors`, or returns no finite number.
    """
    try:
        value = function()
        value = await value if inspect.isawaitable(value) else value
    except (BrokenToolError, DataError):
        raise
    except BaseException as error:
        if not raised_by_code(error):
            raise
        # Masking it would let the model leave the training by an answer that the function cannot read.
        raise ContractError(f"{what} raises {type(error).__name__}: {first_line(error)}.") from error
    return finite(value, what)


def make_scorer(
    reward: str | Reward | Mapping[str | Reward, float] = "hierarchical",
    qa_metric: str = "f1",
    judge: Mapping[str, Any] | None = None,
) -> Scorer:
    """The scorer of `env_config`'s keys of the same names.

    Args:
        reward: a name in `REWARDS`, a function of your own, itself or as "module:function", or a mapping of these to
            weights.
        qa_metric: a name in `QA_METRICS`.
        judge: the endpoint of qa_metric="judge": fields of `ChatClient`.

    Raises:
        ValueError: one sentence that names the key and what is wrong with it.
    """
    check_known([qa_metric], QA_METRICS, "qa_metric")
    if judge is not None and qa_metric != "judge":
        raise ValueError("env_config['judge'] needs env_config['qa_metric'] = 'judge'.")
    weights = list(reward.items()) if isinstance(reward, Mapping) else [(reward, 1.0)]
    if not weights:
        raise ValueError("env_config['reward'] names no reward.")
    terms = tuple(
        (getattr(name, "__name__", str(name)), finite(weight, f"env_config['reward'][{name!r}]"), find_reward(name))
        for name, weight in weights
    )
    return Scorer({MATH: solved_math_accuracy, QA: QA_METRICS[qa_metric](judge or {})}, terms)


def find_reward(name: str | Reward) -> Reward:
    """The reward of that name, the function that "module:function" names, or the function itself.

    Raises:
        ValueError: there is no such reward.
    """
    if isinstance(name, str) and ":" not in name:
        check_known([name], REWARDS, "reward")
        return REWARDS[name]
    found: Any = import_named(name, "reward") if isinstance(name, str) else name
    if not callable(found):
        raise ValueError(f"env_config['reward']: {name!r} is neither a name nor a function.")
    return found
