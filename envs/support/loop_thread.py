"""Threads for calls that wait, and threads with event loops, for things that outlive the loops that use them."""

from __future__ import annotations

import asyncio
import atexit
import concurrent.futures
import contextlib
import functools
import math
import os
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, TypeVar

T = TypeVar("T")

#: Seconds that closing may take when the process ends.
CLOSE_TIMEOUT_S = 10.0


class LoopThread:
    """An event loop that runs in a daemon thread until the process ends."""

    def __init__(self, name: str):
        self.loop = asyncio.new_event_loop()
        self._pid = os.getpid()
        threading.Thread(target=self.loop.run_forever, name=name, daemon=True).start()
        atexit.register(self._at_exit)

    async def run(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Awaits `coroutine`, which runs in the thread's loop, from another loop; cancellation reaches it."""
        return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(coroutine, self.loop))

    def run_blocking(self, coroutine: Coroutine[Any, Any, T], timeout_s: float) -> T:
        """Does the same from a thread without a loop.

        Raises:
            TimeoutError: after `timeout_s` seconds; the coroutine is cancelled. A second later the wait ends even if
                it blocks the loop.
        """
        future = asyncio.run_coroutine_threadsafe(_within(coroutine, timeout_s), self.loop)
        return future.result(timeout_s + 1.0 if math.isfinite(timeout_s) else None)

    def _at_exit(self) -> None:
        # A forked process has the loop, but not the thread that runs it.
        if os.getpid() == self._pid:
            self.run_blocking(self._finish(), CLOSE_TIMEOUT_S)

    async def _finish(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)


@functools.cache
def loop_thread(name: str) -> LoopThread:
    """This process's thread called `name`; a forked process gets its own."""
    return LoopThread(name)


os.register_at_fork(after_in_child=loop_thread.cache_clear)


@contextlib.contextmanager
def uncancelled(message: str) -> Iterator[None]:
    """Wraps the awaiting of a user's coroutine: a `CancelledError` there is the waiting task's own, or a bug.

    Raises:
        RuntimeError: there is one, though nobody cancels the waiting task; its text is `message`. Also in place of
            what is no `Exception`, such as `SystemExit`, which would end the event loop and all its questions.
    """
    try:
        yield
    except Exception:
        raise
    except BaseException as error:
        if not raised_by_code(error):
            raise
        text = message if isinstance(error, asyncio.CancelledError) else f"the code raised {error!r}"
        raise RuntimeError(text).with_traceback(error.__traceback__) from error


def raised_by_code(error: BaseException) -> bool:
    """Whether code that was called or awaited has raised `error` itself: nobody cancels the waiting task, interrupts
    the process or closes the coroutine."""
    if isinstance(error, asyncio.CancelledError):
        waiting = asyncio.current_task()
        return waiting is not None and not waiting.cancelling()
    return not isinstance(error, KeyboardInterrupt | GeneratorExit)


async def in_thread(function: Callable[..., Any], *arguments: Any) -> Any:
    """Calls a function in a daemon thread of its own. If it never ends, neither a call nor the process waits for it."""
    future: concurrent.futures.Future[Any] = concurrent.futures.Future()
    future.set_running_or_notify_cancel()

    def call() -> None:
        try:
            future.set_result(function(*arguments))
        except StopIteration as error:  # No future of asyncio takes one.
            bug = RuntimeError("the tool raised StopIteration")
            bug.__cause__ = error
            future.set_exception(bug)
        except BaseException as error:
            future.set_exception(error)

    threading.Thread(target=call, name="tool", daemon=True).start()
    return await asyncio.wrap_future(future)


async def _within(coroutine: Coroutine[Any, Any, T], timeout_s: float) -> T:
    async with asyncio.timeout(timeout_s):
        return await coroutine
