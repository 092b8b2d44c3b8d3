"""Rewards of a finished path."""

from __future__ import annotations

from dataclasses import dataclass

from rllib_arpo.envs.question import Question

BAD_FORMAT_REWARD = -1.0
#: Bonus for a right answer if each of these tools was really executed (status OK) on the path.
TOOL_BONUS = 0.1
BONUS_TOOLS = frozenset({"search", "python"})


@dataclass(frozen=True, slots=True)
class FinishedPath:
    """The data of a finished path that a reward may use.

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
