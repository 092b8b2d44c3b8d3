"""Values that belong to one event loop: locks, semaphores, and clients that keep connections."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class PerLoop(Generic[T]):
    """A value for every event loop that asks for it; dropped when another loop asks after that loop was closed.

    Args:
        make: makes the value of a loop at the loop's first request.
    """

    def __init__(self, make: Callable[[], T]):
        self._make = make
        self._values: dict[asyncio.AbstractEventLoop, T] = {}

    def get(self) -> T:
        """The value of the running event loop.

        Raises:
            RuntimeError: no event loop is running.
        """
        loop = asyncio.get_running_loop()
        if loop not in self._values:
            # Weak references would not work: clients and semaphores refer to their loop themselves.
            for closed in [one for one in list(self._values) if one.is_closed()]:
                self._values.pop(closed, None)
            self._values[loop] = self._make()
        return self._values[loop]
