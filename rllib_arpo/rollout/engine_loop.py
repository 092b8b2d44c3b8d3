"""Makes a step-driven engine awaitable: many coroutines wait for their turns while one thread steps the engine."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

import numpy as np

from rllib_arpo.engine.engine import Engine, EngineEvent, EntropyReady, Finished, GenerationRequest

#: Seconds after which a step counts as hung. It is less than the usual deadline of a question: at the deadline a hung
#: engine would look like slow tools.
STEP_TIMEOUT_S = 300.0


class EngineFailureError(RuntimeError):
    """The engine is dead or hangs: it will answer no further request. The cause is `__cause__`."""


OnEntropies = Callable[[np.ndarray], None]


@dataclass(slots=True)
class _Pending:
    future: asyncio.Future[Finished]
    entropy_window: int
    on_entropies: OnEntropies | None


class EngineLoop:
    """Runs an engine for the coroutines of one event loop.

    Requests that are submitted while the engine steps join it at the next step; nothing waits for a batch to
    complete. The loop calls `on_entropies` exactly once per request that did not fail, between two engine steps: with
    the first k entropies as soon as the k-th token has arrived, or with fewer if the turn ends before.

    Use as an async context manager.
    """

    def __init__(self, engine: Engine, executor: Executor):
        """`executor` has the one thread that may touch `engine`."""
        self._engine = engine
        self._executor = executor
        self._pending: dict[str, _Pending] = {}
        self._submitted: list[GenerationRequest] = []
        self._cancelled: list[str] = []
        self._wake = asyncio.Event()
        self._hangs = False

    async def __aenter__(self) -> EngineLoop:
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_exc_info: object) -> None:
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        if not self._hangs:
            await self._in_engine_thread(self._cancel_all)

    async def generate(self, request: GenerationRequest, on_entropies: OnEntropies | None = None) -> Finished:
        """Generates one turn. Cancelling the coroutine cancels the request.

        Raises:
            ValueError: the engine refuses this request; others go on.
            EngineFailureError: the engine raised, or did not finish a step in time; it then counts as dead.
            Exception: the error that `on_entropies` raised; other requests go on.
        """
        future: asyncio.Future[Finished] = asyncio.get_running_loop().create_future()
        self._pending[request.request_id] = _Pending(future, request.entropy_window, on_entropies)
        self._submitted.append(request)
        self._wake.set()
        if self._task.done():
            self._fail(self._task.exception() or RuntimeError("The engine loop has ended."))
        try:
            return await future
        except asyncio.CancelledError:
            self._pending.pop(request.request_id, None)
            if request in self._submitted:
                self._submitted.remove(request)
            else:
                self._cancelled.append(request.request_id)
                self._wake.set()
            raise

    async def _in_engine_thread(self, function: Callable[..., Any], *args: Any) -> Any:
        loop = asyncio.get_running_loop()

        def begin() -> None:
            if not call.done():
                limit.reschedule(loop.time() + STEP_TIMEOUT_S)

        def run() -> Any:
            loop.call_soon_threadsafe(begin)  # Before, the engine may load weights, which has a limit of its own.
            return function(*args)

        try:
            async with asyncio.timeout(None) as limit:
                call = loop.run_in_executor(self._executor, run)
                return await call
        except TimeoutError:
            if not limit.expired():  # The engine itself raised the error.
                raise
            self._hangs = True
            raise TimeoutError(f"The engine has not finished a step within {STEP_TIMEOUT_S:g} s.") from None

    async def _run(self) -> None:
        try:
            while True:
                if not (self._pending or self._cancelled):
                    self._wake.clear()
                    await self._wake.wait()
                submitted, self._submitted = self._submitted, []
                # Forget these requests only after the call: if this loop is cancelled, the call may not happen.
                cancelled = list(self._cancelled)
                events, refused = await self._in_engine_thread(self._advance, submitted, cancelled)
                del self._cancelled[: len(cancelled)]
                for request_id, error in refused.items():
                    self._refuse(request_id, error)
                for event in events:
                    self._dispatch(event)
                # Let coroutines that got an event submit their next requests before the next step: once to start a
                # fork's coroutine, once more to let it reach its request.
                await asyncio.sleep(0)
                await asyncio.sleep(0)
        except Exception as error:
            self._fail(error)
            raise

    def _advance(
        self, submitted: list[GenerationRequest], cancelled: list[str]
    ) -> tuple[list[EngineEvent], dict[str, ValueError]]:
        """Makes one step, in the engine's thread; also returns the requests that the engine refused."""
        for request_id in cancelled:  # First, since a new request may have the same id.
            self._engine.cancel(request_id)
        refused = {}
        for request in submitted:
            try:
                self._engine.submit(request)
            except ValueError as error:
                refused[request.request_id] = error
        return self._engine.step() if self._engine.has_unfinished() else [], refused

    def _refuse(self, request_id: str, error: ValueError) -> None:
        pending = self._pending.pop(request_id, None)
        if pending is not None and not pending.future.done():
            pending.future.set_exception(error)

    def _dispatch(self, event: EngineEvent) -> None:
        pending = self._pending.get(event.request_id)
        # A request whose coroutine was cancelled is still pending until the coroutine has run.
        if pending is None or pending.future.done():
            return
        if isinstance(event, Finished):
            del self._pending[event.request_id]
        try:
            if isinstance(event, EntropyReady) or event.finish_reason != "error":
                self._call_once(pending, event.entropies[: pending.entropy_window])
        except Exception as error:
            if isinstance(event, EntropyReady):
                del self._pending[event.request_id]
                self._cancelled.append(event.request_id)
            pending.future.set_exception(error)
            return
        if isinstance(event, Finished):
            pending.future.set_result(event)

    @staticmethod
    def _call_once(pending: _Pending, entropies: np.ndarray) -> None:
        on_entropies, pending.on_entropies = pending.on_entropies, None
        if on_entropies is not None:
            on_entropies(entropies)

    def _fail(self, cause: BaseException) -> None:
        error = EngineFailureError(f"{type(cause).__name__}: {cause}")
        error.__cause__ = cause
        for pending in self._pending.values():
            if not pending.future.done():
                pending.future.set_exception(error)
        self._pending.clear()

    def _cancel_all(self) -> None:
        for request_id in [*self._pending, *self._cancelled]:
            self._engine.cancel(request_id)
