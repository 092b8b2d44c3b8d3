"""Calls of tools, as environments make them."""

import asyncio
from typing import Any

from rllib_arpo.envs.tools.tool import Tool, ToolResult, run_tool


def call(tool: Tool, argument: Any) -> ToolResult:
    return asyncio.run(run_tool(tool, argument))
