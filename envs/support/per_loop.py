"""Things that belong to one event loop: locks, semaphores, clients with connections, and work that callers share."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class PerLoop(Generic[T]):
    """A value for every event loop that asks for it. After a loop has closed, the next loop that asks drops its value.

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


def slot(key: Hashable, number: int) -> asyncio.Semaphore:
    """The `number` slots of `key` in this event loop: `async with slot(...)` holds one of them."""
    return _SLOTS.get().setdefault((key, number), asyncio.Semaphore(number))


def http_client() -> Any:
    """The `httpx.AsyncClient` of this event loop, since its connections belong to one. It has no time limit."""
    return _HTTP_CLIENTS.get()


def _make_http_client() -> Any:
    import httpx

    return httpx.AsyncClient(timeout=None)


async def shared_flight(key: Hashable, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """The result of `make()`, which runs once for all callers in this event loop that ask for `key` meanwhile.

    Cancelling one caller does not stop it for the others. If it raises, all callers get the error.
    """
    flights = _FLIGHTS.get()
    if key not in flights:
        flights[key] = asyncio.create_task(make())
        flights[key].add_done_callback(functools.partial(_landed, flights, key))
    return await asyncio.shield(flights[key])


def _landed(flights: dict[Hashable, asyncio.Task[Any]], key: Hashable, flight: asyncio.Task[Any]) -> None:
    del flights[key]
    if not flight.cancelled():
        flight.exception()  # Marks the exception as retrieved, even if no caller waits for it any more.


_SLOTS: PerLoop[dict[tuple[Hashable, int], asyncio.Semaphore]] = PerLoop(dict)
_HTTP_CLIENTS: PerLoop[Any] = PerLoop(_make_http_client)
_FLIGHTS: PerLoop[dict[Hashable, asyncio.Task[Any]]] = PerLoop(dict)
