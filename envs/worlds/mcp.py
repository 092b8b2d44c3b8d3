"""Model Context Protocol servers as worlds: sessions with them, and their tools under `env_config["tools"]["mcp"]`."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import logging
import math
import os
import re
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from rllib_arpo.core.tree import ToolStatus
from rllib_arpo.envs.errors import BrokenToolError, ToolError
from rllib_arpo.envs.support.loop_thread import LoopThread, loop_thread
from rllib_arpo.envs.support.per_loop import slot
from rllib_arpo.envs.support.texts import first_line
from rllib_arpo.envs.support.validation import check_known
from rllib_arpo.envs.tools.tool import RESERVED_NAMES, Tool, check_name, time_limit_exceeded
from rllib_arpo.envs.worlds.maker import WorldMaker
from rllib_arpo.envs.worlds.world import Call, Reply, World, WorldLost

#: Seconds within which a server that let a call time out must answer; otherwise it counts as dead.
ALIVE_TIMEOUT_S = 5.0
_CLOSE_TIMEOUT_S = 8.0
_MAX_TOOL_PAGES = 100
_logger = logging.getLogger(__name__)
#: Messages of the SDK's RuntimeErrors for a result that does not fit its tool's output schema. RuntimeErrors with other
#: messages are bugs, unless they belong to a subclass (the server asked too many questions before its answer).
_UNFIT = re.compile(r"has an output schema but did not|^Invalid schema for tool|^Invalid structured content")


class SessionLost(Exception):
    """The server has died or cannot be reached."""


@dataclass(frozen=True, kw_only=True)
class McpServer:
    """How a server is reached: either `command` (over standard input and output) or `url` (streamable HTTP).

    Attributes:
        command, args, cwd: start the server as a child process.
        env: variables for it, in addition to PATH, HOME and the like.
        pass_env: names of this process's variables that it also gets (keys of services).
        url: the address of a running server.
        header_variables: HTTP header -> name of the variable of this process that holds its value.
        tools: names of the tools to offer; None: all.
        shared: whether all trajectories of a process use one session: for servers that keep nothing between calls.
    """

    command: str | None = None
    args: Sequence[str] = ()
    cwd: str | None = None
    env: Mapping[str, str] = field(default_factory=dict)
    pass_env: Sequence[str] = ()
    url: str | None = None
    header_variables: Mapping[str, str] = field(default_factory=dict)
    tools: Sequence[str] | None = None
    shared: bool = False

    def __post_init__(self) -> None:
        if (self.command is None) == (self.url is None):
            raise ValueError("an MCP server needs either a command or a url")
        if self.url is not None and not self.url.startswith(("http://", "https://")):
            raise ValueError(f"the url must begin with http:// or https://, which {self.url!r} does not")
        unset = [name for name in (*self.pass_env, *self.header_variables.values()) if name not in os.environ]
        if unset:
            raise ValueError(f"the environment variable {unset[0]} is not set")


@contextlib.asynccontextmanager
async def client_of(server: McpServer) -> AsyncIterator[Any]:
    """A client in a session with the server."""
    import httpx2
    from mcp import Client, StdioServerParameters
    from mcp.client.stdio import stdio_client
    from mcp.client.streamable_http import streamable_http_client

    async with contextlib.AsyncExitStack() as stack:
        if server.command is not None:
            env = {**server.env, **{name: os.environ[name] for name in server.pass_env}}
            parameters = StdioServerParameters(command=server.command, args=list(server.args), env=env, cwd=server.cwd)
            parameters.encoding_error_handler = "replace"
            # Not sys.stderr, which may not be a file.
            errors = sys.__stderr__ or stack.enter_context(open(os.devnull, "w"))  # noqa: SIM115
            transport = stdio_client(parameters, errlog=errors)
        else:
            headers = {header: os.environ[name] for header, name in server.header_variables.items()}
            timeout = httpx2.Timeout(30.0, read=None)
            http = await stack.enter_async_context(httpx2.AsyncClient(headers=headers, timeout=timeout))
            transport = streamable_http_client(str(server.url), http_client=http)
        yield await stack.enter_async_context(Client(transport))


async def asked(request: Any) -> Any:
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


def result_text(result: Any) -> str:
    """An MCP result (`mcp.types.CallToolResult`) as a text, which names the parts that are not text."""
    blocks = [_BLOCKS[block.type](block) for block in result.content]
    if not blocks and result.structured_content is not None:
        return json.dumps(result.structured_content, ensure_ascii=False)
    return "\n".join(blocks) or "(no output)"


#: Type of a content block -> its text.
_BLOCKS: dict[str, Callable[[Any], str]] = {
    "text": lambda block: block.text,
    "image": lambda block: f"[an image: {block.mime_type}]",
    "audio": lambda block: f"[a sound: {block.mime_type}]",
    "resource_link": lambda block: f"[{block.name}: {block.uri}]",
    "resource": lambda block: getattr(block.resource, "text", f"[{block.resource.uri}]"),
}


class McpSession:
    """The session of one server. Called from any event loop.

    The client belongs to one task in the event loop of the thread "mcp". If a shared session is lost, the next use
    opens it again. A trajectory's own session is not opened again, since its server's state is gone.

    After a call has timed out, the server may hang: the next call first asks it, and replaces it if it does not answer.
    """

    def __init__(self, thread: LoopThread, server: McpServer, start_timeout_s: float):
        self.thread, self.server, self._start_timeout_s = thread, server, start_timeout_s
        self._tools: list[Any] | None = None
        self._lock = asyncio.Lock()
        self._client: Any = None
        self._owner: asyncio.Task[Any] | None = None
        #: Whether a session that was open has ended.
        self._lost = False
        #: Whether a call has timed out since the last answer.
        self._doubtful = False

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
        """Starts or contacts the server.

        Raises:
            BrokenToolError: the server does not start, or cannot be reached; `WorldLost`: the trajectory's is gone.
        """
        await self.thread.run(self._opened())

    async def close(self) -> None:
        """Ends the session and, if it is a child process, the server."""
        await self.thread.run(self._close())

    async def call(self, tool: str, arguments: Mapping[str, Any]) -> Any:
        """The result of one call (`mcp.types.CallToolResult`).

        Raises:
            ToolError: the server refuses the call.
            BrokenToolError: the server does not come back; `WorldLost`: it has died, maybe of this call.
        """
        try:
            return await self.thread.run(self._call(tool, dict(arguments)))
        except asyncio.CancelledError:
            # A time limit, or the trajectory's end. It is noted here, since the next call must know of it and may
            # arrive before the thread has ended this one.
            self._doubtful = True
            raise

    async def _call(self, tool: str, arguments: dict[str, Any]) -> Any:
        client = await self._opened()
        try:
            answer = await asked(client.call_tool(tool, arguments))
        except SessionLost as error:
            await self._forget(client)
            raise WorldLost(str(error)) from error
        self._doubtful = False
        return answer

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
        """The client of a session that is alive as far as we know."""
        async with self._lock:
            if self._doubtful:
                # The server may answer another call while it is asked.
                if self._client is not None and not await _is_alive(self._client) and self._doubtful:
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
            # As many starts at once as there are processors: waiting for a slot is not the server's fault.
            async with slot("start of an MCP server", os.cpu_count() or 1), asyncio.timeout(self._start_timeout_s):
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
            async with client_of(self.server) as client:
                ready.set_result(client)
                await asyncio.Event().wait()
        except Exception as error:
            if ready.done():
                # Running calls notice. Later ones must not use a closed client.
                if self._owner is asyncio.current_task():
                    self._gone()
                _logger.warning("A session with an MCP server has ended (%s).", _cause(error))
                return
            broken = BrokenToolError(f"The MCP server cannot be used ({_cause(error)}).")
            broken.__cause__ = error
            ready.set_exception(broken)

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


class McpWorld(World):
    """A trajectory's own session with a server, which its first call starts, or the one that all trajectories share."""

    forks_by = "replay"
    timeout_s = math.inf

    def __init__(self, session: McpSession, tools: Mapping[str, Mapping[str, Any]], call_timeout_s: float):
        self.tools, self.stateless = tools, session.server.shared
        self._session, self._call_timeout_s = session, call_timeout_s

    async def act(self, action: Call | str) -> Reply:
        assert isinstance(action, Call)
        await self._session.open()
        try:
            async with asyncio.timeout(self._call_timeout_s) as limit:
                result = await self._session.call(action.tool, action.arguments)
        except TimeoutError:
            if not limit.expired():
                raise
            return Reply(time_limit_exceeded(self._call_timeout_s), status=ToolStatus.TIMEOUT)
        return Reply(result_text(result), status=ToolStatus.ERROR if result.is_error else ToolStatus.OK)

    async def close(self) -> None:
        if not self.stateless:
            await self._session.close()


@dataclass(frozen=True, kw_only=True)
class McpTools:
    """The tools of MCP servers, each under its own name, or as <server>_<tool> if that name is taken.

    Every process that reads the configuration asks each server for its tools. A trajectory that calls one has a session
    of its own, and its own server if a command starts it, until its question ends; a fork repeats its parent's calls in
    a new session, and is refused if an answer differs. With `"shared": True` all trajectories of a process share one
    session.

    Attributes:
        servers: server name -> the fields of an `McpServer`.
        timeout_s, max_result_tokens, max_concurrency: the limits of every tool.
        start_timeout_s: seconds within which a server must answer for the first time.
    """

    name: ClassVar[str] = "mcp"
    servers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    timeout_s: float = 30.0
    max_result_tokens: int = 2048
    max_concurrency: int | None = None
    start_timeout_s: float = 30.0

    def __post_init__(self) -> None:
        if not self.servers:
            raise ValueError("The mcp tools need `servers`: name -> {'command': ..., 'args': [...]} or {'url': ...}.")
        for name, fields in self.servers.items():
            check_known(fields, [f.name for f in dataclasses.fields(McpServer)], f"key of the MCP server {name!r}")

    def expand(self) -> dict[str, Tool]:
        """Starts or contacts the servers, and makes a tool of each tool that they offer."""
        found = [(server, tool) for server in self.servers for tool in self._worlds_of(server).tools()]
        count = Counter(tool.name for _, tool in found)
        limits = {name: getattr(self, name) for name in ("timeout_s", "max_result_tokens", "max_concurrency")}
        tools: dict[str, Tool] = {}
        for server, tool in found:
            taken = count[tool.name] > 1 or tool.name in _taken_names()
            name = f"{server}_{tool.name}" if taken else tool.name
            try:
                check_name(name)
            except ValueError as error:
                raise ValueError(f"The MCP server {server!r}: {error}.") from error
            if name in tools:
                raise ValueError(f"The MCP server {server!r}: there are two tools {name!r}.")
            tools[name] = dataclasses.replace(tool, name=name, **limits)
        return tools

    def _worlds_of(self, server_name: str) -> WorldMaker:
        try:
            server = McpServer(**self.servers[server_name])
            session = session_of(server, self.start_timeout_s)
            offered = {tool.name: tool for tool in session.list_tools()}
        except ModuleNotFoundError as error:
            raise ValueError(f"The mcp tools need the package {error.name} (pip install mcp).") from error
        except (ValueError, BrokenToolError) as error:
            raise ValueError(f"The MCP server {server_name!r}: {error}") from error
        if server.tools is not None:
            check_known(server.tools, offered, f"tool of the MCP server {server_name!r}")
        schemas = {
            name: {**tool.input_schema, "description": tool.description or ""}
            for name, tool in offered.items()
            if server.tools is None or name in server.tools
        }

        def make() -> World:
            own = session if server.shared else McpSession(session.thread, server, self.start_timeout_s)
            return McpWorld(own, schemas, self.timeout_s)

        return WorldMaker(f"The MCP server {server_name!r}", make)


def _taken_names() -> frozenset[str]:
    # Imported here, because the registry needs this file.
    from rllib_arpo.envs.tools.registry import TOOLS

    return RESERVED_NAMES.union(TOOLS)
