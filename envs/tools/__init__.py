"""Tools that a trajectory can call."""

from __future__ import annotations

import dataclasses
from typing import Any

from rllib_arpo.envs.support.validation import check_known, import_named
from rllib_arpo.envs.tools.browse import BrowseTool
from rllib_arpo.envs.tools.mcp import McpTools
from rllib_arpo.envs.tools.python import PythonTool
from rllib_arpo.envs.tools.search import SearchTool
from rllib_arpo.envs.tools.tool import RESERVED_NAMES, Tool, ToolSet

__all__ = ["TOOLS", "Tool", "ToolSet", "find_tool"]

#: Name -> class of a tool, or of a set of tools: a dataclass whose fields are its configuration.
TOOLS: dict[str, type[Tool] | type[ToolSet]] = {
    tool.name: tool for tool in (PythonTool, SearchTool, BrowseTool, McpTools)
}


def find_tool(name: Any) -> type[Tool] | type[ToolSet]:
    """The tool of that name, or a class: itself, or as "module:Class".

    Raises:
        ValueError: there is no such tool, or it is not a dataclass that subclasses `Tool` or `ToolSet`, or its name is
            that of another tool or of a tag.
    """
    if isinstance(name, str) and ":" not in name:
        check_known([name], TOOLS, "tool")
        return TOOLS[name]
    found: Any = import_named(name, "tools") if isinstance(name, str) else name
    if found in TOOLS.values():
        return found
    if not (isinstance(found, type) and issubclass(found, (Tool, ToolSet)) and dataclasses.is_dataclass(found)):
        what = "is not a dataclass that subclasses Tool or ToolSet (its fields are the options)"
        raise ValueError(f"env_config['tools']: {name!r:.80} {what}.")
    if getattr(found, "name", None) in {None, *RESERVED_NAMES, *TOOLS}:
        raise ValueError(f"env_config['tools']: {name!r} needs a `name` that neither a tool nor a tag has.")
    return found
