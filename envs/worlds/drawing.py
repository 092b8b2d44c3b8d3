"""Lets a coroutine draw from random numbers of its own, whatever runs while it waits."""

from __future__ import annotations

from collections.abc import Awaitable, Generator
from typing import Any, Generic, TypeVar

from rllib_arpo.envs.worlds.far_side import RandomNumbers

T = TypeVar("T")


class Drawing(Generic[T]):
    """An awaitable, each of whose stretches between two waits draws from these numbers."""

    def __init__(self, numbers: RandomNumbers, awaitable: Awaitable[T]):
        self._numbers, self._awaitable = numbers, awaitable

    def __await__(self) -> Generator[Any, Any, T]:
        stretches = self._awaitable.__await__()
        error: BaseException | None = None
        while True:
            with self._numbers.swapped_in():
                try:
                    waited = next(stretches) if error is None else stretches.throw(error)
                except StopIteration as end:
                    return end.value
            error = None
            try:
                yield waited
            except BaseException as raised:
                error = raised
