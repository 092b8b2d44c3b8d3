"""What belongs to one event loop: locks, semaphores, and clients that keep connections."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class PerLoop(Generic[T]):
    """A value for every event loop that asks for it. Loops are held weakly.

    Args:
        make: makes the value of a loop, when it is first asked for there.
    """

    def __init__(self, make: Callable[[], T]):
        self._make = make
        self._values: weakref.WeakKeyDictionary[asyncio.AbstractEventLoop, T] = weakref.WeakKeyDictionary()

    def get(self) -> T:
        """The value of the running event loop.

        Raises:
            RuntimeError: no event loop is running.
        """
        loop = asyncio.get_running_loop()
        if loop not in self._values:
            self._values[loop] = self._make()
        return self._values[loop]
