"""A task: a deterministic map from numbers to questions."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from rllib_arpo.envs.question import Question

TRAIN, TEST = "train", "test"


class Task(ABC):
    """A source of questions. A subclass is a frozen, keyword-only dataclass whose fields are keys of `env_config`.

    Question number n is the same in every process and at any time: to shard a run over env runners, or to resume it,
    the driver only says which env runner asks which numbers.

    Attributes:
        tools: names of the tools that the task's prompt speaks of.
        split: "train" (shuffled anew every epoch) or "test" (fixed order).
        seed: of the shuffling.
    """

    tools: ClassVar[tuple[str, ...]] = ()
    split: str
    seed: int

    def __post_init__(self) -> None:
        if self.split not in (TRAIN, TEST):
            raise ValueError(f"split must be {TRAIN!r} or {TEST!r}, not {self.split!r}.")

    @property
    @abstractmethod
    def num_questions(self) -> int | None:
        """The number of different questions; None if they are generated without end."""

    def row(self, number: int, stream: int = 0) -> int:
        """The row that question `number` asks: in order, or for training in the order of the question's epoch.

        Args:
            stream: tells one order of a seed from another.
        """
        if number < 0:
            raise ValueError(f"Question numbers are >= 0, not {number}.")
        assert self.num_questions is not None
        epoch, position = divmod(number, self.num_questions)
        if self.split == TEST:
            return position
        return int(permutation(self.seed, epoch, self.num_questions, stream)[position])

    @abstractmethod
    def question(self, number: int, tools: Sequence[str]) -> Question:
        """Question number `number` (>= 0), for a model with these tools (without tools it can only answer).

        Raises:
            DataError: the question's data is missing or wrong.
        """

    def tool_defaults(self) -> Mapping[str, Mapping[str, Any]]:
        """Tool name -> configuration that the task provides (documents to search, ...)."""
        return {}

    def inputs(self) -> Mapping[str, str]:
        """Name -> a mark of the content, for every source of the questions."""
        return {}


@functools.lru_cache(maxsize=8)
def permutation(seed: int, epoch: int, size: int, stream: int = 0) -> np.ndarray:
    """A permutation of range(size), [size] int64, that depends only on the arguments."""
    order = np.random.default_rng((seed, epoch, stream)).permutation(size)
    order.flags.writeable = False
    return order
