"""Samples many questions at a time in a separate thread; a question starts as soon as an environment is free.

The env runner itself has none of these methods, since Ray runs every actor that has an `async` method in an event loop.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import Executor
from traceback import format_exception

from rllib_arpo.engine.engine import Engine
from rllib_arpo.envs.errors import ContractError, DataError
from rllib_arpo.envs.forkable_env import ForkableMultiAgentEnv, settled
from rllib_arpo.faults import Failure
from rllib_arpo.rollout.engine_loop import STEP_TIMEOUT_S, EngineFailureError, EngineLoop
from rllib_arpo.rollout.messages import FailedQuestion, Purpose, QuestionRef, SampledQuestion
from rllib_arpo.rollout.settings import RolloutSettings
from rllib_arpo.rollout.tree_sampler import ANY_TOKEN_ID, TreeSampler

logger = logging.getLogger("rllib_arpo")

#: Seconds after which a question counts as closed.
CLOSE_TIMEOUT_S = 20.0


class QuestionLoop:
    """Samples questions in a background thread, as many at a time as there are environments.

    Questions are started in the order in which they were submitted and come back in the order in which they end. An
    error of the engine ends the loop and all its questions, and `take` raises it. So does an error of the data, unless
    `on_bad_row="skip"` leaves the row out. A question that fails otherwise comes back as a `FailedQuestion`.

    Use as a context manager, or call `stop`.
    """

    def __init__(
        self,
        engine: Engine,
        engine_thread: Executor,
        on_progress: Callable[..., None] = lambda **_amounts: None,
        on_ended: Callable[[SampledQuestion, ForkableMultiAgentEnv, int], None] = lambda *_question: None,
        num_token_ids: int = ANY_TOKEN_ID,
    ):
        """
        Args:
            on_progress: called with the latest increments: `tokens=`, `forks=`, `tools=`, `questions=`.
            on_ended: called in the loop's thread with a question that has ended, its environment, and the environment's
                number in its pool.
            num_token_ids: the model has embeddings of the token ids below this number.
        """
        self._engine = engine
        self._engine_thread = engine_thread
        self._on_progress = on_progress
        self._on_ended = on_ended
        self._num_token_ids = num_token_ids
        self._idle: dict[Purpose, asyncio.Queue[tuple[int, ForkableMultiAgentEnv]]] = {}
        self._closings: set[asyncio.Task[None]] = set()
        self._finished: queue.SimpleQueue[SampledQuestion | FailedQuestion | BaseException] = queue.SimpleQueue()
        self._error: BaseException | None = None
        #: Questions that were submitted and not taken yet.
        self.in_flight: set[QuestionRef] = set()
        #: Runs every question, while the loop runs.
        self._group: asyncio.TaskGroup
        self._ready = threading.Event()
        self._thread = threading.Thread(target=self._run, name="rollout", daemon=True)
        self._thread.start()
        self._ready.wait()

    def submit(
        self, refs: Iterable[QuestionRef], envs: Sequence[ForkableMultiAgentEnv], settings: RolloutSettings
    ) -> None:
        """Queues questions of one purpose; does not start questions that are already in flight.

        Args:
            envs: the pool that questions of this purpose use; the first call with a purpose fixes it.
        """
        new = [ref for ref in refs if ref not in self.in_flight]
        for purpose in {ref.purpose for ref in new} - self._idle.keys():
            self._idle[purpose] = asyncio.Queue()
            for numbered in enumerate(envs):
                self._idle[purpose].put_nowait(numbered)
        self.in_flight.update(new)
        self._call(lambda: [self._group.create_task(self._sample(ref, settings)) for ref in new])

    def take(self, timeout_s: float | None = None) -> list[SampledQuestion | FailedQuestion]:
        """The questions that have ended since the last call; waits for one up to `timeout_s` (None: for ever).

        Raises:
            Exception: the error that ended the loop.
        """
        taken: list[SampledQuestion | FailedQuestion] = []
        while self.in_flight and self._error is None:
            try:
                item = self._finished.get(timeout=0 if taken else timeout_s)
            except queue.Empty:
                break
            if isinstance(item, BaseException):
                self._error = item
            else:
                taken.append(item)
                self.in_flight.remove(item.ref)
        if self._error is not None and not taken:  # What has ended comes first.
            raise self._error
        return taken

    def stop(self) -> None:
        """Cancels unfinished questions and waits for the thread, unless an engine hangs; can be called twice.

        It logs errors that `take` has not raised, for example while the last questions were closed.
        """
        if self._thread.is_alive():
            self._call(self._main_task.cancel)
        self._thread.join(STEP_TIMEOUT_S + CLOSE_TIMEOUT_S)
        if self._thread.is_alive():
            logger.error("The engine hangs: its thread stays until the process ends.")
        while not self._finished.empty():
            if isinstance(item := self._finished.get(), BaseException):
                logger.error("After the last question: %s", item)

    def __enter__(self) -> QuestionLoop:
        return self

    def __exit__(self, *_exc_info: object) -> None:
        self.stop()

    def _call(self, function: Callable[[], object]) -> None:
        """Calls a function in the loop's thread."""
        # A closed loop has nothing left to do; `take` raises the reason.
        with contextlib.suppress(RuntimeError):
            self._event_loop.call_soon_threadsafe(function)

    def _run(self) -> None:
        try:
            asyncio.run(self._main())
        except asyncio.CancelledError:
            pass
        except BaseException as error:
            self._finished.put(_first(error))
        self._ready.set()

    async def _main(self) -> None:
        self._event_loop, main_task = asyncio.get_running_loop(), asyncio.current_task()
        assert main_task is not None
        self._main_task = main_task
        engine_loop = EngineLoop(self._engine, self._engine_thread)
        try:
            async with engine_loop as self._engine_loop, asyncio.TaskGroup() as self._group:
                self._ready.set()
                await asyncio.Event().wait()
        finally:
            await asyncio.gather(*self._closings)

    async def _sample(self, ref: QuestionRef, settings: RolloutSettings) -> None:
        index, env = await self._idle[ref.purpose].get()
        sampler = TreeSampler(
            env,
            self._engine_loop,
            settings,
            self._engine.vocab_size,
            ref,
            num_token_ids=self._num_token_ids,
            on_progress=self._on_progress,
        )
        ended: SampledQuestion | FailedQuestion
        try:
            ended = await sampler.sample()
            self._on_ended(ended, env, index)
        except Exception as error:
            cause = _first(error)
            bad_row = isinstance(cause, DataError) and not isinstance(cause, ContractError)
            if isinstance(cause, EngineFailureError | DataError) and not (bad_row and settings.on_bad_row == "skip"):
                raise
            message = f"{type(cause).__name__}: {cause}"
            ended = FailedQuestion(ref, Failure(message, not bad_row, traceback="".join(format_exception(cause))))
        finally:
            # The result does not wait until the question is closed.
            closing = asyncio.create_task(self._close(ref, index, env))
            self._closings.add(closing)
            closing.add_done_callback(self._closings.discard)
        self._on_progress(questions=1)
        self._finished.put(ended)

    async def _close(self, ref: QuestionRef, index: int, env: ForkableMultiAgentEnv) -> None:
        """Closes a question, and frees its environment. Only a `DataError` of the environment ends the run."""
        try:
            async with asyncio.timeout(CLOSE_TIMEOUT_S):
                await settled(env.close_question())
        except DataError as error:
            self._finished.put(error)
        except Exception as error:
            logger.warning("%s did not close question %d (%r).", type(env).__name__, ref.asked, error)
        self._idle[ref.purpose].put_nowait((index, env))


def _first(error: BaseException) -> BaseException:
    """The first error itself, without the exception groups that task groups wrap around it."""
    return _first(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else error
