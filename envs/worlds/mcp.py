"""Model Context Protocol servers as worlds: their tools under `env_config["tools"]["mcp"]`."""

from __future__ import annotations

import asyncio
import dataclasses
import math
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from rllib_arpo.core.tree import ToolStatus
from rllib_arpo.envs.errors import BrokenToolError
from rllib_arpo.envs.support.validation import check_known
from rllib_arpo.envs.tools.tool import RESERVED_NAMES, Tool, ToolSet, check_name, time_limit_exceeded
from rllib_arpo.envs.worlds.maker import WorldMaker
from rllib_arpo.envs.worlds.mcp_session import McpServer, McpSession, result_text, session_of
from rllib_arpo.envs.worlds.world import Call, Reply, World


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
class McpTools(ToolSet):
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
