"""Reaches a Model Context Protocol server, asks it, and shows its answers to a model."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TextIO

from rllib_arpo.envs.errors import ToolError
from rllib_arpo.envs.support.texts import first_line

#: Messages of the SDK's RuntimeErrors for a result that does not fit its tool's output schema. RuntimeErrors with other
#: messages are bugs, unless they belong to a subclass (the server asked too many questions before its answer).
_UNFIT = re.compile(r"has an output schema but did not|^Invalid schema for tool|^Invalid structured content")


_METHOD = re.compile(r"""["']method["'] ?:""")


class SessionLost(Exception):
    """The server has died or cannot be reached."""


@dataclass(frozen=True, kw_only=True)
class McpServer:
    """The way to a server: either `command` (over standard input and output) or `url` (streamable HTTP).

    Attributes:
        command, args, cwd: start the server as a child process.
        env: variables for it, beside PATH, HOME and the like.
        pass_env: names of this process's variables that it also gets (keys of services).
        url: of a server that runs already.
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
async def client_of(server: McpServer, on_unread: Callable[[], None]) -> AsyncIterator[Any]:
    """A client in a session with the server.

    Args:
        on_unread: called when the server sends a message of the protocol that cannot be read.
    """
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
            transport = stdio_client(parameters, errlog=sys.__stderr__ or stack.enter_context(_no_file()))
        else:
            headers = {header: os.environ[name] for header, name in server.header_variables.items()}
            timeout = httpx2.Timeout(30.0, read=None)
            http = await stack.enter_async_context(httpx2.AsyncClient(headers=headers, timeout=timeout))
            transport = streamable_http_client(str(server.url), http_client=http)
        yield await stack.enter_async_context(Client(transport, message_handler=partial(_on_message, on_unread)))


async def _on_message(on_unread: Callable[[], None], message: Any) -> None:
    from pydantic import ValidationError

    # Not a line that the server prints for its owner, nor a message that nobody waits for.
    texts = [str(one["input"]) for one in message.errors()] if isinstance(message, ValidationError) else []
    if any("jsonrpc" in text and not _METHOD.search(text) for text in texts):
        on_unread()


def _no_file() -> TextIO:
    return open(os.devnull, "w")


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


def shown(result: Any) -> str:
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
