"""A session with one Model Context Protocol server, kept for as long as this process lives."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import logging
import os
import re
import sys
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TextIO

from rllib_arpo.envs.errors import BrokenToolError, ToolError
from rllib_arpo.envs.support.loop_thread import LoopThread, loop_thread
from rllib_arpo.envs.support.texts import first_line

#: Seconds within which a server that let a call time out must answer; otherwise it counts as dead.
ALIVE_TIMEOUT_S = 5.0
_CLOSE_TIMEOUT_S = 8.0
_MAX_TOOL_PAGES = 100


#: Messages of the SDK's RuntimeErrors for a result that does not fit its tool's output schema. RuntimeErrors with other
#: messages are bugs, unless they belong to a subclass (the server asked too many questions before its answer).
_UNFIT = re.compile(r"has an output schema but did not|^Invalid schema for tool|^Invalid structured content")

_logger = logging.getLogger(__name__)


class SessionLost(Exception):
    """The server has died or cannot be reached."""


@dataclass(frozen=True, kw_only=True)
class McpServer:
    """How a server is reached: either `command` (over standard input and output) or `url` (streamable HTTP).

    Attributes:
        command, args, cwd: start the server as a child process.
        env: variables for it, beside PATH, HOME and the like.
        pass_env: names of this process's variables that it also gets (keys of services).
        url: of a server that runs already.
        header_variables: HTTP header -> name of the variable of this process that holds its value.
        tools: names of the tools to offer; None: all.
    """

    command: str | None = None
    args: Sequence[str] = ()
    cwd: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    pass_env: Sequence[str] = ()
    url: str | None = None
    header_variables: Mapping[str, str] = field(default_factory=dict)
    tools: Sequence[str] | None = None

    def __post_init__(self) -> None:
        if (self.command is None) == (self.url is None):
            raise ValueError("an MCP server needs either a command or a url")
        if self.url is not None and not self.url.startswith(("http://", "https://")):
            raise ValueError(f"the url must begin with http:// or https://, which {self.url!r} does not")
        unset = [name for name in (*self.pass_env, *self.header_variables.values()) if name not in os.environ]
        if unset:
            raise ValueError(f"the environment variable {unset[0]} is not set")


class McpSession:
    """The session of one server; a lost one is opened again at the next use. Called from any event loop.

    The client belongs to one task of one loop, that of the thread "mcp".

    A server that let a call time out may hang, or it may be busy with that call, so that other calls only wait. Any
    answer shows that it is alive. If all calls that were in flight have ended without an answer, the session asks the
    server, and replaces it if it does not answer.
    """

    def __init__(self, thread: LoopThread, server: McpServer, start_timeout_s: float):
        self._thread, self._server, self._start_timeout_s = thread, server, start_timeout_s
        self._lock = asyncio.Lock()
        self._client: Any = None
        self._owner: asyncio.Task[Any] | None = None
        self._doubtful = False
        #: The calls in flight, and those of them that were in flight when the doubt arose.
        self._in_flight: set[object] = set()
        self._witnesses: set[object] = set()
        #: The last client that was closed because its server kept silent: its calls did not kill the server.
        self._given_up: Any = None

    def list_tools(self) -> list[Any]:
        """The server's tools (`mcp.types.Tool`); blocks.

        Raises:
            BrokenToolError: the server does not start, or cannot be reached.
        """
        try:
            return self._thread.run_blocking(self._list_tools(), 2 * self._start_timeout_s + _CLOSE_TIMEOUT_S)
        except TimeoutError as error:
            raise BrokenToolError("The MCP server did not list its tools in time.") from error

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> Any:
        """The result of one call (`mcp.types.CallToolResult`); repeated once if the server dies of the first.

        Raises:
            ToolError: the server refuses the call.
            BrokenToolError: the server has died and does not come back, or dies again of this call.
        """
        call = object()
        try:
            return await self._thread.run(self._call(call, tool, dict(arguments)))
        except asyncio.CancelledError:
            # A time limit, or the trajectory's end. It is noted here, since the next call must know of it and may
            # arrive before the thread has ended this one.
            self._in_flight.discard(call)
            if not self._doubtful:
                self._doubtful, self._witnesses = True, set(self._in_flight)
            raise

    async def _call(self, call: object, tool: str, arguments: dict[str, Any]) -> Any:
        num_deaths = 0
        while True:
            client = await self._opened()
            self._in_flight.add(call)
            try:
                result = await _asked(client.call_tool(tool, arguments))
                self._doubtful = False
                return result
            except SessionLost as error:
                await self._forget(client)
                num_deaths += client is not self._given_up
                if num_deaths == 2:
                    raise BrokenToolError(
                        f"The MCP server died twice during one call of {tool!r} ({error})."
                    ) from error
            finally:
                self._in_flight.discard(call)

    async def _list_tools(self) -> list[Any]:
        client, tools, cursor = await self._opened(), [], None
        for _ in range(_MAX_TOOL_PAGES):
            try:
                page = await _asked(client.list_tools(cursor=cursor))
            except (SessionLost, ToolError) as error:
                await self._forget(client)
                raise BrokenToolError(f"The MCP server did not list its tools ({error}).") from error
            tools += page.tools
            cursor = page.next_cursor
            if not cursor:
                break
        return tools

    async def _opened(self) -> Any:
        """The client of a session that is alive as far as is known."""
        async with self._lock:
            if self._doubtful and not self._witnesses & self._in_flight:
                # The server may answer another call while it is asked.
                if self._client is not None and not await _is_alive(self._client) and self._doubtful:
                    self._given_up = self._client
                    await self.close()
                self._doubtful = False
            if self._client is None:
                await self._open()
            return self._client

    async def _open(self) -> None:
        ready = asyncio.get_running_loop().create_future()
        self._owner = asyncio.create_task(self._own(ready))
        try:
            async with asyncio.timeout(self._start_timeout_s):
                self._client = await ready
        except TimeoutError as error:
            await self.close()
            raise BrokenToolError(f"The MCP server did not answer in {self._start_timeout_s:g} s.") from error
        except BaseException:
            await self.close()
            raise

    async def _own(self, ready: asyncio.Future[Any]) -> None:
        """Holds the client open until it is cancelled: it must be closed by the task that opened it."""
        try:
            async with _client_of(self._server) as client:
                ready.set_result(client)
                await asyncio.Event().wait()
        except Exception as error:
            if ready.done():
                # Calls in flight notice. Later ones must not use a client that is closed.
                if self._owner is asyncio.current_task():
                    self._owner = self._client = None
                _logger.warning("A session with an MCP server has ended (%s).", _cause(error))
                return
            broken = BrokenToolError(f"The MCP server cannot be used ({_cause(error)}).")
            broken.__cause__ = error
            ready.set_exception(broken)

    async def _forget(self, client: Any) -> None:
        """Closes the session of `client`, unless another call has done so."""
        async with self._lock:
            if self._client is client:
                await self.close()

    async def close(self) -> None:
        """Ends the session and, where it is a child process, the server."""
        owner, self._owner, self._client = self._owner, None, None
        if owner is not None:
            owner.cancel()
            await asyncio.wait([owner], timeout=_CLOSE_TIMEOUT_S)


@contextlib.asynccontextmanager
async def _client_of(server: McpServer) -> AsyncIterator[Any]:
    import httpx2
    from mcp import Client, StdioServerParameters
    from mcp.client.stdio import stdio_client
    from mcp.client.streamable_http import streamable_http_client

    async with contextlib.AsyncExitStack() as stack:
        if server.command is not None:
            env = {**server.env, **{name: os.environ[name] for name in server.pass_env}}
            parameters = StdioServerParameters(command=server.command, args=list(server.args), env=env, cwd=server.cwd)
            # Not sys.stderr, which may not be a file.
            transport = stdio_client(parameters, errlog=sys.__stderr__ or stack.enter_context(_no_file()))
        else:
            headers = {header: os.environ[name] for header, name in server.header_variables.items()}
            timeout = httpx2.Timeout(30.0, read=None)
            http = await stack.enter_async_context(httpx2.AsyncClient(headers=headers, timeout=timeout))
            transport = streamable_http_client(str(server.url), http_client=http)
        yield await stack.enter_async_context(Client(transport))


def _no_file() -> TextIO:
    return open(os.devnull, "w")


async def _asked(request: Any) -> Any:
    """Awaits a request to the server.

    Raises:
        SessionLost: the server is gone.
        ToolError: it answers with an error.
    """
    import anyio
    import httpx2
    from mcp import MCPError
    from mcp.types import CONNECTION_CLOSED
    from pydantic import ValidationError

    try:
        return await request
    except MCPError as error:
        # A streamable HTTP server that was restarted does not know the session.
        if error.code == CONNECTION_CLOSED or error.message == "Session terminated":
            raise SessionLost(error.message) from error
        raise ToolError(f"The MCP server answered with an error: {error.message}") from error
    except (ValidationError, RuntimeError) as error:
        if type(error) is RuntimeError and not _UNFIT.search(str(error)):
            raise
        raise ToolError(f"The MCP server's answer cannot be used: {first_line(error)}") from error
    except (OSError, anyio.ClosedResourceError, anyio.BrokenResourceError, httpx2.HTTPError) as error:
        raise SessionLost(str(error) or type(error).__name__) from error


async def _is_alive(client: Any) -> bool:
    try:
        async with asyncio.timeout(ALIVE_TIMEOUT_S):
            await _asked(client.list_tools(cache_mode="bypass"))
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
        _SESSIONS[key] = McpSession(thread, server, start_timeout_s)
        thread.at_exit(_SESSIONS[key].close)
    return _SESSIONS[key]


#: (thread, server as JSON) -> its session. The thread tells a forked process's sessions from its parent's.
_SESSIONS: dict[tuple[LoopThread, str], McpSession] = {}
