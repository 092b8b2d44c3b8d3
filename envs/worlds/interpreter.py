"""Worlds in a process of another Python, for packages that conflict with this one's. The process runs `far_side.py`."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import json
import math
import os
import socket
import subprocess
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from rllib_arpo.core.tree import ToolStatus
from rllib_arpo.envs.errors import BrokenToolError
from rllib_arpo.envs.question import Question
from rllib_arpo.envs.rewards import FinishedPath, Score
from rllib_arpo.envs.support.loop_thread import LoopThread, loop_thread
from rllib_arpo.envs.support.per_loop import slot
from rllib_arpo.envs.support.texts import first_line, seed_of_name
from rllib_arpo.envs.worlds.world import Call, NotCopied, Reply, World, WorldLost

#: Seconds within which the process must begin, and must finish a request for which nobody waits any more.
START_TIMEOUT_S, GIVEN_UP_TIMEOUT_S = 120.0, 5.0
#: Bytes of an answer, at most.
_MAX_BYTES = 1 << 30
_SCRIPT = Path(__file__).with_name("far_side.py")
#: Variables that would show the other Python this one's packages.
_OF_THIS_PYTHON = ("PYTHONPATH", "PYTHONHOME", "VIRTUAL_ENV")


def environment_of_others() -> dict[str, str]:
    """The environment of a process of another Python."""
    return {name: value for name, value in os.environ.items() if name not in _OF_THIS_PYTHON}


class _Process:
    """A process of the other Python, which answers one request after the other. Lives in one event loop.

    Nothing that it prints reaches the terminal. It ends when its socket closes, and so with this process.
    """

    def __init__(self, python: str):
        ours, theirs = socket.socketpair()
        self._socket = ours
        silent = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.DEVNULL)
        with theirs:
            descriptor = theirs.fileno()
            self._popen = subprocess.Popen(
                [python, str(_SCRIPT), str(descriptor)],
                pass_fds=[descriptor],
                env=environment_of_others(),
                start_new_session=True,
                **silent,  # type: ignore[call-overload]
            )
        self._numbers = itertools.count()
        #: Number -> unanswered request, in order: it is busy with the first. Cancelled: nobody waits for the answer.
        self._unanswered: dict[int, asyncio.Future[Any]] = {}
        self.gone = False
        #: The world's `tools`, and whether it takes texts.
        self.described: Any = None

    async def begin(self, named: str, options: Mapping[str, Any]) -> Any:
        reader, self._writer = await asyncio.open_unix_connection(sock=self._socket, limit=_MAX_BYTES)
        self._reading = asyncio.create_task(self._read(reader))
        return await self.ask("begin", named=named, options=options)

    async def ask(self, do: str, **fields: Any) -> Any:
        """What the process answers.

        Raises:
            WorldLost: the process is gone.
            RuntimeError: the world's code raised.
        """
        if self.gone:
            raise WorldLost("its process has ended")
        number = next(self._numbers)
        line = json.dumps({"id": number, "do": do, **fields}, default=_plain)
        self._unanswered[number] = asyncio.get_running_loop().create_future()
        self._writer.write(f"{line}\n".encode())
        try:
            return await self._unanswered[number]
        except asyncio.CancelledError:
            self._doubt()
            raise

    async def tell(self, limit_s: float, do: str, **fields: Any) -> None:
        """Asks for something that may take `limit_s` seconds and fail."""
        with contextlib.suppress(TimeoutError, WorldLost, RuntimeError):
            async with asyncio.timeout(limit_s):
                await self.ask(do, **fields)

    def _doubt(self) -> None:
        """Ends the process soon if it stays busy with a request that was given up: the other worlds wait for it."""
        number = next(iter(self._unanswered), None)
        if number is not None and self._unanswered[number].cancelled():
            asyncio.get_running_loop().call_later(GIVEN_UP_TIMEOUT_S, self._end_if_busy_with, number)

    def _end_if_busy_with(self, number: int) -> None:
        if number in self._unanswered:
            self.end()

    def end(self) -> None:
        self._popen.kill()

    async def _read(self, reader: asyncio.StreamReader) -> None:
        try:
            while True:
                answer = json.loads(await reader.readuntil())
                future = self._unanswered.pop(answer["id"])
                self._doubt()
                if future.cancelled():
                    continue
                if "raised" in answer:
                    error = RuntimeError(answer["raised"])
                    error.add_note(answer["traceback"])
                    future.set_exception(error)
                else:
                    future.set_result(answer["value"])
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            self.gone = True
            for future in self._unanswered.values():
                if not future.done():
                    future.set_exception(WorldLost("its process has died"))
            self._writer.close()
            self._popen.kill()
            await asyncio.to_thread(self._popen.wait)


class Interpreter:
    """Keeps the process of one kind of world, and starts it again when it has died. Called from any event loop.

    Args:
        python: the other Python's path.
        named: "module:name" of the world, there; the module may be the path of a file.
        options: its keyword arguments.
    """

    def __init__(self, python: str, named: str, options: Mapping[str, Any]):
        self._python, self._named, self._options = python, named, options
        self.thread: LoopThread = loop_thread("interpreter")
        self._started: asyncio.Task[_Process] | None = None

    def describe(self) -> dict[str, Any]:
        """The world's `tools`, and whether it takes texts; blocks.

        Raises:
            ValueError: the world cannot be made there.
        """
        try:
            return self.thread.run_blocking(self._running(), math.inf).described  # It has its own limit.
        except (BrokenToolError, RuntimeError) as error:
            what = f"env_config['world']: {self._named} in {self._python}"
            raise ValueError(f"{what} cannot be made ({error}).") from error

    async def process(self) -> _Process:
        """A process that is alive as far as we know. It goes on starting even if the caller stops waiting.

        Raises:
            BrokenToolError: it does not start.
        """
        try:
            return await self.thread.run(self._running())
        except WorldLost as error:
            raise BrokenToolError(str(error)) from error

    async def _running(self) -> _Process:
        started = self._started
        if started is None or (
            started.done() and (started.cancelled() or started.exception() or started.result().gone)
        ):
            self._started = started = asyncio.create_task(self._start())
        return await asyncio.shield(started)

    async def _start(self) -> _Process:
        try:
            process = _Process(self._python)
        except OSError as error:
            raise BrokenToolError(f"{self._python} does not start ({error})") from error
        try:
            async with asyncio.timeout(START_TIMEOUT_S):
                process.described = await process.begin(self._named, self._options)
        except TimeoutError as error:
            process.end()
            raise BrokenToolError(f"it has not begun in {START_TIMEOUT_S:g} s") from error
        except BaseException:
            process.end()
            raise
        return process


class FarWorld(World):
    """A world in another Python. It forks by `copy.deepcopy` in that Python if this works, otherwise by replay."""

    fork_is_copy = True

    def __init__(self, interpreter: Interpreter, tools: Mapping[str, Mapping[str, Any]], takes_text: bool):
        self._interpreter = interpreter
        self.tools, self.takes_text = tools, takes_text
        self._process: _Process | None = None
        self._number = next(_NUMBERS)

    def exclusive_use(self) -> asyncio.Semaphore:
        """The process answers one request after the other."""
        return slot(self._interpreter, 1)

    async def reset(self, question: Question) -> str:
        self._process = await self._interpreter.process()
        return await self._ask("reset", row=dict(question.row), seed=seed_of_name(question.question_id))

    async def act(self, action: Call | str) -> Reply:
        said = {"tool": action.tool, "arguments": dict(action.arguments)} if isinstance(action, Call) else action
        reply = await self._ask("act", action=said)
        if reply.get("error"):
            return Reply(reply["text"], status=ToolStatus.ERROR, raised=tuple(reply["error"]))
        return Reply(reply["text"], reply["reward"], reply["done"])

    async def score(self, path: FinishedPath) -> Score | None:
        score = await self._ask("score", turns=list(path.turns), format_valid=path.format_valid)
        return None if score is None else Score(float(score["reward"]), min(max(float(score["accuracy"]), 0.0), 1.0))

    async def fork(self) -> World:
        child = FarWorld(self._interpreter, self.tools, self.takes_text)
        child.__dict__ |= {**self.__dict__, "_number": child._number}
        try:
            await self._ask("fork", child=child._number)
        except RuntimeError as error:
            raise NotCopied(first_line(error)) from error
        except BaseException:
            await child.close()  # It may still be made there.
            raise
        return child

    async def close(self) -> None:
        if self._process is not None:
            closing = self._process.tell(self.timeout_s, "close", world=self._number)
            asyncio.run_coroutine_threadsafe(closing, self._interpreter.thread.loop)

    async def _ask(self, do: str, **fields: Any) -> Any:
        assert self._process is not None
        return await self._interpreter.thread.run(self._process.ask(do, world=self._number, **fields))


def interpreter_world(named: Any, python: str, options: Mapping[str, Any]) -> Callable[[], World]:
    """The maker of worlds of another Python.

    Args:
        named: "module:name" of a class or a function there (`far_side.py` lists the kinds).
        python: its path.
        options: keyword arguments of `named`.

    Raises:
        ValueError: there is no such Python or world.
    """
    if not (isinstance(named, str) and ":" in named):
        raise ValueError(f"env_config['world']: with 'python' a world is named as \"module:name\", not {named!r:.80}.")
    key = json.dumps([python, named, dict(options), os.getpid()], sort_keys=True, default=str)
    if key not in _INTERPRETERS:
        _INTERPRETERS[key] = Interpreter(python, named, options)
    interpreter = _INTERPRETERS[key]
    return partial(FarWorld, interpreter, **interpreter.describe())


_NUMBERS = itertools.count()
#: Python, world and options -> the process for them.
_INTERPRETERS: dict[str, Interpreter] = {}


def _plain(value: Any) -> Any:
    """A JSON value in place of one that JSON does not have, such as numpy's."""
    return value.tolist() if hasattr(value, "tolist") else str(value)
