"""Sessions with Model Context Protocol servers: one that this process keeps, or one for each trajectory."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import logging
import os
from collections.abc import Mapping
from typing import Any

from rllib_arpo.envs.errors import BrokenToolError, ToolError
from rllib_arpo.envs.support.loop_thread import LoopThread, loop_thread
from rllib_arpo.envs.support.per_loop import place
from rllib_arpo.envs.worlds.mcp_client import McpServer, SessionLost, asked, client_of
from rllib_arpo.envs.worlds.world import WorldLost

#: Seconds within which a server that let a call time out must answer; otherwise it counts as dead.
ALIVE_TIMEOUT_S = 5.0
_CLOSE_TIMEOUT_S = 8.0
_MAX_TOOL_PAGES = 100
_logger = logging.getLogger(__name__)


class McpSession:
    """The session of one server. Called from any event loop.

    The client belongs to one task of one loop, that of the thread "mcp". A shared session that was lost is opened again
    at the next use. One of a trajectory is not: its server's state is gone.

    A server that let a call time out may hang, or it may be busy with that call, so that other calls only wait. Any
    answer shows that it is alive. If all calls that were in flight have ended without an answer, the session asks the
    server, and replaces it if it does not answer.
    """

    def __init__(self, thread: LoopThread, server: McpServer, start_timeout_s: float):
        self.thread, self.server, self._start_timeout_s = thread, server, start_timeout_s
        self._tools: list[Any] | None = None
        self._lock = asyncio.Lock()
        self._client: Any = None
        self._owner: asyncio.Task[Any] | None = None
        #: Whether a session that was open has ended.
        self._lost = False
        self._doubtful = False
        #: The calls in flight, and those of them that were in flight when the doubt arose.
        self._in_flight: set[object] = set()
        self._witnesses: set[object] = set()
        #: The limits of the questions to the server that it has not answered.
        self._asking: list[asyncio.Timeout] = []
        #: The last client that was closed because its server kept silent: its calls did not kill the server.
        self._given_up: Any = None

    def list_tools(self) -> list[Any]:
        """The server's tools (`mcp.types.Tool`); blocks.

        Raises:
            BrokenToolError: the server does not start, or cannot be reached.
        """
        try:
            limit_s = 2 * self._start_timeout_s + _CLOSE_TIMEOUT_S
            self._tools = self._tools or self.thread.run_blocking(self._list_tools(), limit_s)
        except TimeoutError as error:
            raise BrokenToolError("The MCP server did not list its tools in time.") from error
        return self._tools

    async def open(self) -> None:
        """Starts the server, or reaches it.

        Raises:
            BrokenToolError: the server does not start, or cannot be reached; `WorldLost`: the trajectory's is gone.
        """
        await self.thread.run(self._opened())

    async def close(self) -> None:
        """Ends the session and, where it is a child process, the server."""
        await self.thread.run(self._close())

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> Any:
        """The result of one call (`mcp.types.CallToolResult`).

        Raises:
            ToolError: the server refuses the call.
            BrokenToolError: the server does not come back; `WorldLost`: it has died, maybe of this call.
        """
        flight = object()
        try:
            return await self.thread.run(self._call(flight, tool, dict(arguments)))
        except asyncio.CancelledError:
            # A time limit, or the trajectory's end. It is noted here, since the next call must know of it and may
            # arrive before the thread has ended this one.
            self._in_flight.discard(flight)
            if not self._doubtful:
                self._doubtful, self._witnesses = True, set(self._in_flight)
            raise

    async def _call(self, flight: object, tool: str, arguments: dict[str, Any]) -> Any:
        while True:
            client = await self._opened()
            self._in_flight.add(flight)
            try:
                answer = await self._answer(client, tool, arguments)
                self._doubtful = False
                return answer
            except SessionLost as error:
                await self._forget(client)
                if client is not self._given_up or not self.server.shared:
                    raise WorldLost(str(error)) from error
            finally:
                self._in_flight.discard(flight)

    async def _list_tools(self) -> list[Any]:
        client, tools, cursor = await self._opened(), [], None
        for _ in range(_MAX_TOOL_PAGES):
            try:
                page = await asked(client.list_tools(cursor=cursor))
            except (SessionLost, ToolError) as error:
                await self._forget(client)
                raise BrokenToolError(f"The MCP server did not list its tools ({error}).") from error
            tools += page.tools
            cursor = page.next_cursor
            if not cursor:
                break
        if not self.server.shared:
            await self._close()
            self._lost = False
        return tools

    async def _opened(self) -> Any:
        """The client of a session that is alive as far as is known."""
        async with self._lock:
            if self._doubtful and not self._witnesses & self._in_flight:
                # The server may answer another call while it is asked.
                if self._client is not None and not await _is_alive(self._client) and self._doubtful:
                    self._given_up = self._client
                    await self._close()
                self._doubtful = False
            if self._client is None:
                if self._lost and not self.server.shared:
                    raise WorldLost("its server is gone")
                self._client = await self._open()
            return self._client

    async def _open(self) -> Any:
        ready = asyncio.get_running_loop().create_future()
        try:
            # As many starts at once as there are processors: waiting for a place is not the server's fault.
            async with place("start of an MCP server", os.cpu_count() or 1), asyncio.timeout(self._start_timeout_s):
                self._owner = asyncio.create_task(self._own(ready))
                return await ready
        except TimeoutError as error:
            await self._close()
            raise BrokenToolError(f"The MCP server did not answer in {self._start_timeout_s:g} s.") from error
        except BaseException:
            await self._close()
            raise

    async def _own(self, ready: asyncio.Future[Any]) -> None:
        """Holds the client open until it is cancelled: it must be closed by the task that opened it."""
        try:
            async with client_of(self.server, self._on_unread) as client:
                ready.set_result(client)
                await asyncio.Event().wait()
        except Exception as error:
            if ready.done():
                # Calls in flight notice. Later ones must not use a client that is closed.
                if self._owner is asyncio.current_task():
                    self._gone()
                _logger.warning("A session with an MCP server has ended (%s).", _cause(error))
                return
            broken = BrokenToolError(f"The MCP server cannot be used ({_cause(error)}).")
            broken.__cause__ = error
            ready.set_exception(broken)

    async def _answer(self, client: Any, tool: str, arguments: dict[str, Any]) -> Any:
        """The server's answer.

        Raises:
            ToolError: it refuses the call, or its answer cannot be read.
        """
        try:
            async with asyncio.timeout(None) as limit:
                self._asking.append(limit)
                return await asked(client.call_tool(tool, arguments))
        except TimeoutError as error:
            raise ToolError(f"The MCP server's answer to {tool!r} cannot be read.") from error
        finally:
            self._asking.remove(limit)

    def _on_unread(self) -> None:
        """Ends the wait for an answer, if there is only one for which the message can be meant."""
        if len(self._asking) == 1:
            self._asking[0].reschedule(asyncio.get_running_loop().time())

    async def _forget(self, client: Any) -> None:
        """Closes the session of `client`, unless another call has done so."""
        async with self._lock:
            if self._client is client:
                await self._close()

    async def _close(self) -> None:
        owner = self._owner
        self._gone()
        if owner is not None:
            owner.cancel()
            await asyncio.wait([owner], timeout=_CLOSE_TIMEOUT_S)

    def _gone(self) -> None:
        self._lost = self._lost or self._client is not None
        self._owner = self._client = None


async def _is_alive(client: Any) -> bool:
    try:
        async with asyncio.timeout(ALIVE_TIMEOUT_S):
            await asked(client.list_tools(cache_mode="bypass"))
    except (SessionLost, TimeoutError):
        return False
    except ToolError:
        pass
    return True


def _cause(error: BaseException) -> str:
    """The first exception of nested groups, in words."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return str(error) or type(error).__name__


def session_of(server: McpServer, start_timeout_s: float) -> McpSession:
    """This process's session with `server`; equal servers share one, whatever tools of them are offered."""
    thread, server = loop_thread("mcp"), dataclasses.replace(server, tools=None)
    key = thread, json.dumps([dataclasses.asdict(server), start_timeout_s], sort_keys=True)
    if key not in _SESSIONS:
        # Its task, which the thread ends when this process exits, closes it.
        _SESSIONS[key] = McpSession(thread, server, start_timeout_s)
    return _SESSIONS[key]


#: (thread, server as JSON) -> its session. The thread tells a forked process's sessions from its parent's.
_SESSIONS: dict[tuple[LoopThread, str], McpSession] = {}
