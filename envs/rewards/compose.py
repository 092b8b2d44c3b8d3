"""The reward that `env_config` asks for: how answers are compared, and the weighted sum of reward functions."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rllib_arpo.envs.errors import finite
from rllib_arpo.envs.question import MATH, QA, Comparison, Question
from rllib_arpo.envs.rewards.hierarchical import FinishedPath, accuracy, hierarchical, tool_calls, valid_format
from rllib_arpo.envs.rewards.judge import Judge
from rllib_arpo.envs.rewards.mathematics.accuracy import solved_math_accuracy
from rllib_arpo.envs.rewards.qa import bounded_f1, exact_match
from rllib_arpo.envs.support.validation import check_known, import_named

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


#: How answers to questions of knowledge are compared (`env_config["qa_metric"]`): name -> maker of the comparison from
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
            BrokenToolError: an answer cannot be compared now, which is not the policy's fault.
            ContractError: a reward is not a finite number.
        """
        if path.format_valid:
            assert path.answer is not None
            compare = self.comparisons[path.question.ability]
            path = dataclasses.replace(path, accuracy=await compare(path.answer, path.question))
        total = 0.0
        for name, weight, reward in self.terms:
            value = reward(path)
            value = await value if inspect.isawaitable(value) else value
            total += weight * finite(value, f"The reward {name!r}")
        return Score(total, path.accuracy)


def make_scorer(
    reward: str | Mapping[str, float] = "hierarchical",
    qa_metric: str = "f1",
    judge: Mapping[str, Any] | None = None,
    comparisons: Mapping[str, Comparison] | None = None,
) -> Scorer:
    """The scorer of `env_config`'s keys of the same names.

    Args:
        reward: a name in `REWARDS`, "module:function" for one of your own, or a mapping of such names to weights.
        qa_metric: a name in `QA_METRICS`.
        judge: the endpoint of qa_metric="judge": fields of `ChatClient`.
        comparisons: how a task compares answers of its own abilities.

    Raises:
        ValueError: one sentence that names the key and what is wrong with it.
    """
    check_known([qa_metric], QA_METRICS, "qa_metric")
    if judge is not None and qa_metric != "judge":
        raise ValueError("env_config['judge'] needs env_config['qa_metric'] = 'judge'.")
    weights = {reward: 1.0} if isinstance(reward, str) else dict(reward)
    if not weights:
        raise ValueError("env_config['reward'] names no reward.")
    for name, weight in weights.items():
        weights[name] = finite(weight, f"env_config['reward'][{name!r}]")
    terms = tuple((name, weight, find_reward(name)) for name, weight in weights.items())
    standard = {MATH: solved_math_accuracy, QA: QA_METRICS[qa_metric](judge or {})}
    return Scorer({**standard, **(comparisons or {})}, terms)


def find_reward(name: str) -> Reward:
    """The reward of that name, or the function that "module:function" names.

    Raises:
        ValueError: there is no such reward."""
    if ":" not in name:
        check_known([name], REWARDS, "reward")
        return REWARDS[name]
    found = import_named(name, "reward")
    if not callable(found):
        raise ValueError(f"env_config['reward']: {name!r} is not a function.")
    return found
