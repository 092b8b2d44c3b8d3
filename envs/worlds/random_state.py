"""The random numbers of a world: a state of `random` and `numpy.random` for each, swapped in while its code runs."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Awaitable, Generator, Iterator
from typing import Any, Generic, TypeVar

import numpy as np

from rllib_arpo.envs.support.texts import seed_of_name

T = TypeVar("T")


class RandomState:
    """The states of both generators; games that draw from them replay, and forks go on from their parent's states."""

    def __init__(self, seed: int, states: tuple[Any, Any] | None = None):
        self._states = states or (random.Random(seed).getstate(), np.random.RandomState(seed).get_state())

    @classmethod
    def of(cls, name: str) -> RandomState:
        """The state of a world at its beginning."""
        return cls(seed_of_name(name))

    def copy(self) -> RandomState:
        return RandomState(0, self._states)

    @contextlib.contextmanager
    def swapped_in(self) -> Iterator[None]:
        """The block's code draws from these states. It must not wait."""
        outside = random.getstate(), np.random.get_state()
        random.setstate(self._states[0])
        np.random.set_state(self._states[1])
        try:
            yield
        finally:
            self._states = random.getstate(), np.random.get_state()
            random.setstate(outside[0])
            np.random.set_state(outside[1])

    def run(self, awaitable: Awaitable[T]) -> Awaitable[T]:
        """`awaitable`, each of whose stretches between two waits draws from these states."""
        return _Run(self, awaitable)


class _Run(Generic[T]):
    def __init__(self, random_state: RandomState, awaitable: Awaitable[T]):
        self._random_state, self._awaitable = random_state, awaitable

    def __await__(self) -> Generator[Any, Any, T]:
        stretches = self._awaitable.__await__()
        error: BaseException | None = None
        while True:
            with self._random_state.swapped_in():
                try:
                    waited = next(stretches) if error is None else stretches.throw(error)
                except StopIteration as end:
                    return end.value
            error = None
            try:
                yield waited
            except BaseException as raised:
                error = raised
