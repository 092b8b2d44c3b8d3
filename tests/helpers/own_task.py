"""A task as a user writes one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from rllib_arpo.envs.question import MATH, Question
from rllib_arpo.envs.tasks import Task


@dataclass(frozen=True, kw_only=True)
class SquaresTask(Task):
    """What is n times n, for n from `first` on."""

    tools: ClassVar[tuple[str, ...]] = ("python",)
    split: str = "train"
    seed: int = 0
    first: int = 2

    @property
    def num_questions(self) -> int:
        return 10

    def question(self, number: int, tools: Sequence[str] = tools) -> Question:
        n = self.first + number % 10
        return Question(f"squares/{n}", (("user", f"What is {n} * {n}?"),), (str(n * n),), MATH, f"squares {n}")


class NoDataclass(Task):
    pass
