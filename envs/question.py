"""The question: tasks ask it, protocols show it, and rewards compare answers with it."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

#: Abilities, which decide how answers are compared: as mathematics, or as answers to knowledge questions.
MATH, QA = "math", "qa"


@dataclass(frozen=True, slots=True)
class Shot:
    """A worked example. The protocol writes its call, or `thought` if the model lacks the tool."""

    question: str
    answer: str
    tool: str = ""
    argument: str = ""
    result: str = ""
    thought: str = ""


@dataclass(frozen=True, slots=True)
class Question:
    """One question.

    Attributes:
        question_id: its name; equal ids mean equal questions.
        messages: (role, content) pairs, roles "system", "user", "assistant"; the last one is the question itself. If
            the first one is not a system message, the protocol puts its instruction there. Empty: the world asks.
        answers: the right answers (aliases); empty if a world scores.
        ability: how answers are compared: `MATH` or `QA`.
        source: its origin ("train.parquet, row 12"), for error messages.
        shots: worked examples, shown before the question.
        row: what a world is reset with: the row of the data, or the seed (plain values).
    """

    question_id: str
    messages: tuple[tuple[str, str], ...]
    answers: tuple[str, ...]
    ability: str
    source: str
    shots: tuple[Shot, ...] = ()
    row: Mapping[str, Any] = field(default_factory=dict)

    @property
    def asked(self) -> str:
        """The text of the last message; empty if the world asks."""
        return self.messages[-1][1] if self.messages else ""


#: (answer, question) -> accuracy in [0, 1].
Comparison = Callable[[str, Question], Awaitable[float]]
