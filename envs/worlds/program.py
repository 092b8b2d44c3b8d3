"""A program that asks the model, as a world: `async def program(chat, row) -> float`."""

from __future__ import annotations

import asyncio
import copy
import functools
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from rllib_arpo.envs.errors import BrokenToolError, ContractError, DataError, ToolError, finite
from rllib_arpo.envs.forkable_env import TOOL_NOTE
from rllib_arpo.envs.question import Question
from rllib_arpo.envs.rewards import FinishedPath, Score
from rllib_arpo.envs.support.texts import seed_of_name
from rllib_arpo.envs.worlds.far_side import RandomNumbers
from rllib_arpo.envs.worlds.maker import Drawing
from rllib_arpo.envs.worlds.world import Opening, Reply, World

#: Seconds that a program may take to end when it is cancelled.
CLOSE_TIMEOUT_S = 10.0
_logger = logging.getLogger(__name__)
#: Asks the model: its next turn, without its thoughts.
Chat = Callable[[str], Awaitable[str]]


class ProgramWorld(World):
    """Runs a program in a task of its own, which waits in `chat` while the model generates.

    The model reads what the program asks; the number that the program returns is the reward. If the trajectory ends
    earlier (a limit, bad format), the configured reward counts, and the program is cancelled. A fork runs the program
    again, and its draws from `random` and `numpy.random` repeat, but not those of tasks that it starts.

    If the program does not catch a `ToolError`, such as a `ChatClient`'s without an answer, the trajectory is masked.
    """

    takes_text = True
    forks_by = "replay"

    def __init__(self, program: Callable[[Any, dict[str, Any]], Awaitable[float]], name: str):
        self._program, self._name = program, f"The program {name!r}"
        #: What the program asks, and None once it has ended.
        self._asked: asyncio.Queue[Any] = asyncio.Queue()
        self._said: asyncio.Future[Any] | None = None
        self._task: asyncio.Task[float] | None = None
        self._returned: float | None = None

    async def reset(self, question: Question) -> str | Opening:
        return await self._begun(question, self._chat)

    async def act(self, action: Any) -> Reply:
        if not self._waits:
            raise ContractError(f"{self._name} did not wait for the model's answer.")
        assert self._said is not None
        self._said.set_result(action)
        asked = await self._next()
        if asked is None:
            return Reply("", done=True)
        return asked if isinstance(asked, Reply) else Reply(asked)

    async def score(self, path: FinishedPath) -> Score | None:
        await self.close()
        return None if self._returned is None else Score.of(self._returned)

    async def close(self) -> None:
        if self._task is not None and not self._task.done():
            self._task.cancel()
            await asyncio.wait([self._task], timeout=CLOSE_TIMEOUT_S)
            if not self._task.done():
                _warn_of_running(self._name)

    async def _begun(self, question: Question, chat: Any) -> Any:
        """Starts the program, which asks through `chat`, and returns the first thing that it asks."""
        run = self._run(chat, copy.deepcopy(dict(question.row)), RandomNumbers(seed_of_name(question.question_id)))
        self._task = asyncio.create_task(run)
        self._task.add_done_callback(lambda _: self._asked.put_nowait(None))
        asked = await self._next()
        if asked is None:
            raise ContractError(f"{self._name} returned before it asked anything.")
        return asked

    async def _run(self, chat: Any, row: dict[str, Any], numbers: RandomNumbers) -> float:
        try:
            return await Drawing(numbers, self._program(chat, row))
        except SystemExit as error:  # It would end the event loop.
            raise RuntimeError(f"{self._name} raised {error!r}") from error

    @property
    def _waits(self) -> bool:
        """Whether it waits for the model."""
        return self._said is not None and not self._said.done()

    async def _chat(self, text: str) -> str:
        if not isinstance(text, str):
            raise ContractError(f"{self._name} must ask with a text, not {text!r:.80}.")
        if self._waits:
            raise ContractError(f"{self._name} asked before the model had answered; it may ask one thing at a time.")
        return await self._ask(text)

    async def _ask(self, asked: Any) -> Any:
        self._said = asyncio.get_running_loop().create_future()
        self._asked.put_nowait(asked)
        return await self._said

    async def _next(self) -> Any:
        asked = await self._asked.get()
        if asked is None:
            self._returned = self._result()
        return asked

    def _result(self) -> float:
        assert self._task is not None
        try:
            if self._task.cancelled():
                raise RuntimeError(f"{self._name} cancelled itself.")
            returned = self._task.result()
        except ToolError as error:
            raise BrokenToolError(f"{self._name}: {error}") from error
        except (BrokenToolError, DataError):
            raise
        except Exception as error:
            error.add_note(f"{TOOL_NOTE}{self._name}")
            raise
        return finite(returned, f"{self._name}: the reward")


@functools.lru_cache(maxsize=16)
def _warn_of_running(name: str) -> None:
    _logger.warning(
        "%s has not ended %g s after it was cancelled: nobody waits for it any more.", name, CLOSE_TIMEOUT_S
    )
