"""Runs everything that touches an engine in one thread, which never keeps the process alive."""

import queue
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from typing import Any

#: Seconds after which a call counts as hung; it may first wait for a step.
CALL_TIMEOUT_S = 540.0


class EngineThread(Executor):
    """Calls functions one after the other in a thread of its own.

    The thread is a daemon: unlike a `ThreadPoolExecutor`'s, it does not keep the process alive if the engine hangs.
    """

    def __init__(self) -> None:
        self._calls: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)
        self._thread.start()

    def submit(self, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Future[Any]:
        future: Future[Any] = Future()
        self._calls.put((future, lambda: function(*args, **kwargs)))
        return future

    def call(self, function: Callable[..., Any], *args: Any, timeout_s: float | None = CALL_TIMEOUT_S) -> Any:
        """Calls the function and waits for its result.

        Raises:
            TimeoutError: the function has not finished within `timeout_s` seconds (None: wait for ever).
        """
        future = self.submit(function, *args)
        try:
            return future.result(timeout_s)
        except TimeoutError:
            if future.done():  # The function itself raised the error.
                raise
            raise TimeoutError(f"The engine has not finished {function.__name__} within {timeout_s:g} s.") from None

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Ends the thread after all submitted calls; never waits for it, since it may hang."""
        self._calls.put(None)

    def _run(self) -> None:
        while (item := self._calls.get()) is not None:
            _answer(*item)
            del item  # The arguments of a call, such as a model's weights, must not stay until the next one.


def _answer(future: Future[Any], call: Callable[[], Any]) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = call()
    except BaseException as error:
        future.set_exception(error)
    else:
        future.set_result(result)
