"""Runs everything that touches an engine in one thread."""

from collections.abc import Callable
from typing import Any

from rllib_arpo.daemon_executor import DaemonExecutor

#: Seconds after which a call counts as hung; it may first wait for a step.
CALL_TIMEOUT_S = 540.0


class EngineThread(DaemonExecutor):
    """The thread that calls an engine; if the engine hangs, the process can still end."""

    def __init__(self) -> None:
        super().__init__("engine")

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
