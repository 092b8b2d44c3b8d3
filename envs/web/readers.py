"""Processes that read pages. A process can be ended if a page keeps its parser busy, some of them for minutes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from asyncio.subprocess import PIPE, Process
from pathlib import Path
from typing import Any

from rllib_arpo.envs.errors import BrokenToolError, ToolError
from rllib_arpo.envs.support.loop_thread import LoopThread, loop_thread
from rllib_arpo.envs.support.texts import first_line

#: Seconds that one page may take; most take milliseconds.
TIME_LIMIT_S = 10.0
_START_TIMEOUT_S = 60.0
_MAX_PROCESSES = 4
_MAX_REPLY_BYTES = 256 << 20
_PROGRAM = str(Path(__file__).with_name("reader_main.py"))


async def ask_reader(task: str, **arguments: Any) -> Any:
    """The reply of one of `reader_main.TASKS`, run in a reader process.

    Raises:
        ToolError: the task took too long, or killed its process.
        BrokenToolError: no process can be started.
    """
    thread = loop_thread("readers")
    return await thread.run(_readers_of(thread).ask(task, arguments, TIME_LIMIT_S))


def prepare_readers() -> None:
    """Starts a reader process; blocks."""
    thread = loop_thread("readers")
    robots = {"robots_txt": "", "url": "http://a/", "user_agent": "a"}
    thread.run_blocking(_readers_of(thread).ask("may_fetch", robots, _START_TIMEOUT_S), 2 * _START_TIMEOUT_S)


class _Readers:
    """The reader processes of this process; used in one event loop."""

    def __init__(self):
        self._idle: list[Process] = []
        self._places = asyncio.Semaphore(min(_MAX_PROCESSES, os.cpu_count() or 1))

    async def ask(self, task: str, arguments: dict[str, Any], time_limit_s: float) -> Any:
        request = json.dumps([task, arguments]).encode() + b"\n"
        async with self._places:
            process = await self._take()
            try:
                async with asyncio.timeout(time_limit_s):
                    reply = await _exchange(process, request)
            except BaseException as error:
                await _end(process)
                if isinstance(error, TimeoutError):
                    raise ToolError("The page takes too long to read.") from error
                if isinstance(error, OSError | EOFError):
                    raise ToolError("The page cannot be read: its reader died of it.") from error
                raise
            self._idle.append(process)
        return json.loads(reply)

    async def _take(self) -> Process:
        """An idle process, or a new one, which says that it is ready."""
        while self._idle:
            process = self._idle.pop()
            if process.returncode is None:
                return process
        try:
            return await _started()
        except (OSError, EOFError) as error:
            raise BrokenToolError(f"The process that reads pages does not start ({first_line(error)}).") from error

    async def close(self) -> None:
        for process in self._idle:
            await _end(process)


async def _started() -> Process:
    """A new process, when it is ready. Its error messages go to this process's standard error."""
    # "-P", since the modules beside the program must not hide others of the same names.
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-P", _PROGRAM, stdin=PIPE, stdout=PIPE, limit=_MAX_REPLY_BYTES
    )
    try:
        async with asyncio.timeout(_START_TIMEOUT_S):
            await process.stdout.readexactly(1)
    except BaseException:
        await _end(process)
        raise
    return process


async def _end(process: Process) -> None:
    with contextlib.suppress(ProcessLookupError):
        process.kill()
    await asyncio.shield(process.wait())


async def _exchange(process: Process, request: bytes) -> bytes:
    process.stdin.write(request)
    await process.stdin.drain()
    reply = await process.stdout.readline()
    if not reply.endswith(b"\n"):
        raise EOFError
    return reply


_READERS: dict[LoopThread, _Readers] = {}


def _readers_of(thread: LoopThread) -> _Readers:
    if thread not in _READERS:
        _READERS[thread] = _Readers()
        thread.at_exit(_READERS[thread].close)
    return _READERS[thread]
