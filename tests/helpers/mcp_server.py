"""A small MCP server, written with the SDK. Over standard input and output, or with a port over streamable HTTP."""

from __future__ import annotations

import os
import signal
import sys
import time

from mcp.server.mcpserver import MCPServer
from mcp.server.mcpserver.exceptions import ToolError

server = MCPServer("shop", log_level="ERROR")


@server.tool()
def price(item: str) -> str:
    """The price of an item."""
    return {"brass lamp": "12", "oak chair": "30"}.get(item, f"no item {item!r}")


@server.tool()
def multiply(a: int, b: int, unit: str = "") -> str:
    """The product of two numbers."""
    return f"{a * b}{unit}"


@server.tool()
def fail(reason: str) -> str:
    """Fails."""
    raise ToolError(reason)


_COUNT = [0]


@server.tool()
def count() -> str:
    """How often it was called."""
    _COUNT[0] += 1
    return str(_COUNT[0])


@server.tool()
def sleep(seconds: float) -> str:
    """Sleeps."""
    time.sleep(seconds)
    return "awake"


@server.tool()
def die() -> None:
    """Kills the server."""
    os.kill(os.getpid(), signal.SIGKILL)


@server.tool()
def pid() -> str:
    """The server's process, and the variable SHOP_KEY."""
    return f"{os.getpid()} {os.environ.get('SHOP_KEY', '')}"


if __name__ == "__main__":
    if len(sys.argv) > 1:
        server.run("streamable-http", port=int(sys.argv[1]))
    else:
        server.run("stdio")
