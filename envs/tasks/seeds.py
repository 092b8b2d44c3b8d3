"""Seeds: the questions of a world that makes its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from rllib_arpo.envs.question import QA, Question
from rllib_arpo.envs.tasks.task import TEST, Task


@dataclass(frozen=True, kw_only=True)
class SeedsTask(Task):
    """The row of a question is {"seed": n}: even seeds in training, odd ones in the test split.

    Attributes:
        num_seeds: of the training split; None: no end.
        num_test_questions: size of the test split.
    """

    tools: ClassVar[tuple[str, ...]] = ()
    split: str = "train"
    seed: int = 0
    num_seeds: int | None = None
    num_test_questions: int = 64

    @property
    def num_questions(self) -> int | None:
        return self.num_test_questions if self.split == TEST else self.num_seeds

    def question(self, number: int, tools: Sequence[str] = ()) -> Question:
        row = number if self.num_questions is None else self.row(number)
        seed = 2 * row + (self.split == TEST)
        return Question(f"seed/{seed}", (), (), QA, f"seed {seed}", row={"seed": seed})
