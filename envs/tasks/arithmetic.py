"""Generated arithmetic with one tool: "What is a * b - c?" The quickest task on which a small model learns."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from rllib_arpo.envs.question import MATH, Question, Shot
from rllib_arpo.envs.tasks.task import TEST, Task

SYSTEM = "Compute with python, then answer in \\boxed{}."
#: One triple (a, b, c) in this many belongs to the test split.
TEST_MODULUS = 8


@dataclass(frozen=True, kw_only=True)
class ArithmeticTask(Task):
    """Questions "What is a * b - c?", with a and b of two digits and c of one to two.

    A triple belongs to the test split if (a + 3 b + 5 c) mod 8 = 0, and otherwise to the training split.

    Attributes:
        num_test_questions: size of the test split. The training split has no end.
    """

    tools: ClassVar[tuple[str, ...]] = ("python",)
    split: str = "train"
    seed: int = 0
    num_test_questions: int = 64

    @property
    def num_questions(self) -> int | None:
        return self.num_test_questions if self.split == TEST else None

    def question(self, number: int, tools: Sequence[str] = tools) -> Question:
        index = self.row(number) if self.split == TEST else number
        a, b, c = self._triple(index)
        name = f"arithmetic/{a}*{b}-{c}"
        system = (("system", SYSTEM),) if set(self.tools) <= set(tools) else ()
        shots = (_shot(12, 31, 5), _shot(48, 20, 17))
        return Question(name, (*system, ("user", _text(a, b, c))), (str(a * b - c),), MATH, name, shots)

    def _triple(self, index: int) -> tuple[int, int, int]:
        """The first drawn triple of this split that is not a worked example."""
        is_test = self.split == TEST
        rng = np.random.default_rng((0 if is_test else self.seed, index, int(is_test)))
        while True:
            a, b, c = (int(n) for n in rng.integers((11, 11, 2), (100, 100, 100)))
            if in_test_split(a, b, c) == is_test and (a, b, c) not in ((12, 31, 5), (48, 20, 17)):
                return a, b, c


def in_test_split(a: int, b: int, c: int) -> bool:
    return (a + 3 * b + 5 * c) % TEST_MODULUS == 0


def _text(a: int, b: int, c: int) -> str:
    return f"What is {a} * {b} - {c}?"


def _shot(a: int, b: int, c: int) -> Shot:
    value = a * b - c
    thought = f"{a} * {b} is {a * b}, and {a * b} - {c} is {value}."
    return Shot(_text(a, b, c), str(value), "python", f"print({a} * {b} - {c})", str(value), thought)
