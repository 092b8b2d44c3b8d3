"""Work that is done once for all callers that ask for it while it is in progress."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine, Hashable
from typing import Any, TypeVar

from rllib_arpo.envs.support.per_loop import PerLoop

T = TypeVar("T")


async def shared_flight(key: Hashable, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """The result of `make()`, which runs once for all callers in this event loop that ask for `key` meanwhile.

    Cancelling one caller does not stop it for the others. If it raises, all callers get the error.
    """
    flights = _FLIGHTS.get()
    if key not in flights:
        flights[key] = asyncio.create_task(make())
        flights[key].add_done_callback(functools.partial(_landed, flights, key))
    return await asyncio.shield(flights[key])


def _landed(flights: dict[Hashable, asyncio.Task], key: Hashable, flight: asyncio.Task) -> None:
    del flights[key]
    if not flight.cancelled():
        flight.exception()  # Marks the exception as retrieved, even if no caller waits for it any more.


_FLIGHTS: PerLoop[dict[Hashable, asyncio.Task]] = PerLoop(dict)
