"""Tools of Model Context Protocol servers as tools."""

from __future__ import annotations

import asyncio
import dataclasses
import math
import re
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

from rllib_arpo.core.tree import ToolStatus
from rllib_arpo.envs.errors import BrokenToolError
from rllib_arpo.envs.support.loop_thread import loop_thread
from rllib_arpo.envs.support.validation import check_known
from rllib_arpo.envs.tools.mcp_client import McpServer, shown
from rllib_arpo.envs.tools.mcp_session import McpSession, session_of
from rllib_arpo.envs.tools.schema_tool import WorldTool, schema_validator
from rllib_arpo.envs.tools.tool import RESERVED_NAMES, Tool, ToolResult, ToolSet, time_limit_exceeded
from rllib_arpo.envs.worlds.world import Call, Reply, World

#: Names that can stand between "<" and ">" as a tag.
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")


class McpWorld(World):
    """A trajectory's session with a server, which starts with its first call."""

    forks_by = "replay"
    timeout_s = math.inf

    def __init__(self, server: McpServer, start_timeout_s: float, call_timeout_s: float):
        self._session = McpSession(loop_thread("mcp"), server, start_timeout_s)
        self._call_timeout_s = call_timeout_s

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
        return Reply(shown(result), status=_status(result))

    async def close(self) -> None:
        await self._session.close()


@dataclass(frozen=True, kw_only=True)
class McpTool(WorldTool):
    """One tool of an MCP server: of a trajectory's session, or of the one that all trajectories share."""

    session: McpSession = field(repr=False)

    async def __call__(self, arguments: Mapping[str, Any]) -> ToolResult:
        result = await self.session.call(self.name_in_world, arguments)
        return ToolResult(shown(result), _status(result))


def _status(result: Any) -> ToolStatus:
    return ToolStatus.ERROR if result.is_error else ToolStatus.OK


@dataclass(frozen=True, kw_only=True)
class McpTools(ToolSet):
    """The tools of MCP servers, each under its own name, or as <server>_<tool> if that name is taken.

    Every process that reads the configuration asks each server for its tools. A trajectory that calls one has a session
    of its own, and its own server if a command starts it, until its question ends; a fork repeats its parent's calls in
    a new session, and is refused if an answer differs. With `"shared": True` all trajectories of a process share one
    session.

    Attributes:
        servers: server name -> the fields of an `McpServer`.
        timeout_s, max_result_tokens, max_concurrency: of every tool.
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
        """Starts the servers, or reaches them, and makes a tool of each of theirs."""
        found = [(name, tool) for name in self.servers for tool in self._tools_of(name)]
        count = Counter(tool.name for _, tool in found)
        tools: dict[str, Tool] = {}
        for server, tool in found:
            taken = count[tool.name] > 1 or tool.name in _taken_names()
            name = f"{server}_{tool.name}" if taken else tool.name
            if not _NAME.fullmatch(name):
                raise ValueError(
                    f"The MCP server {server!r}: {name!r} cannot be the name of a tool, which has letters, digits and"
                    " '_', '.', '-' only."
                )
            if name in tools:
                raise ValueError(f"The MCP server {server!r}: there are two tools {name!r}.")
            tools[name] = dataclasses.replace(tool, name=name)
        return tools

    def _tools_of(self, server_name: str) -> list[McpTool]:
        try:
            server = McpServer(**self.servers[server_name])
            session = session_of(server, self.start_timeout_s)
            offered = session.list_tools()
        except ModuleNotFoundError as error:
            raise ValueError(f"The mcp tools need the package {error.name} (pip install mcp).") from error
        except (ValueError, BrokenToolError) as error:
            raise ValueError(f"The MCP server {server_name!r}: {error}") from error
        if server.tools is not None:
            check_known(server.tools, [tool.name for tool in offered], f"tool of the MCP server {server_name!r}")
            offered = [tool for tool in offered if tool.name in server.tools]
        make = None if server.shared else partial(McpWorld, server, self.start_timeout_s, self.timeout_s)
        return [self._tool(session, make, server_name, tool) for tool in offered]

    def _tool(self, session: McpSession, make: Callable[[], World] | None, server_name: str, tool: Any) -> McpTool:
        try:
            schema_validator(tool.input_schema)
        except ValueError as error:
            raise ValueError(
                f"The MCP server {server_name!r}: the schema of its tool {tool.name!r} is wrong ({error})."
            ) from error
        return McpTool(
            name=tool.name,
            name_in_world=tool.name,
            description=tool.description or "",
            session=session,
            make_world=make,
            input_schema=tool.input_schema,
            timeout_s=self.timeout_s,
            max_result_tokens=self.max_result_tokens,
            max_concurrency=self.max_concurrency,
        )


def _taken_names() -> frozenset[str]:
    # Imported here, because the registry needs this file.
    from rllib_arpo.envs.tools import TOOLS

    return RESERVED_NAMES.union(TOOLS)
