"""Finds tools by their names, and tools of users."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

from rllib_arpo.envs.support.validation import check_known, import_named
from rllib_arpo.envs.tools.browse import BrowseTool
from rllib_arpo.envs.tools.python import PythonTool
from rllib_arpo.envs.tools.search import SearchTool
from rllib_arpo.envs.tools.tool import RESERVED_NAMES, Tool
from rllib_arpo.envs.worlds.functions import FunctionMaker, function_maker
from rllib_arpo.envs.worlds.mcp import McpTools

#: Name -> a dataclass whose fields are its configuration, and whose `expand` returns the tools that it stands for.
TOOLS: dict[str, type[Tool] | type[McpTools]] = {
    tool.name: tool for tool in (PythonTool, SearchTool, BrowseTool, McpTools)
}


def find_tool(name: Any) -> type[Tool] | type[McpTools] | FunctionMaker:
    """The maker of a tool: named in `TOOLS`, or a class or a function, itself or as "module:name".

    Raises:
        ValueError: there is no such tool, or it is neither a dataclass that subclasses `Tool` nor a function
            (`function_maker`), or another tool or a tag has its name.
    """
    if isinstance(name, str) and ":" not in name:
        check_known([name], TOOLS, "tool")
        return TOOLS[name]
    found: Any = import_named(name, "tools") if isinstance(name, str) else name
    if found in TOOLS.values():
        return found
    made = found
    if not (isinstance(found, type) and issubclass(found, Tool) and dataclasses.is_dataclass(found)):
        try:
            made = function_maker(found)
        except ValueError as error:
            raise ValueError(f"env_config['tools']: {name!r:.80}: {error}.") from error
        if made is None:
            what = "is neither a dataclass that subclasses Tool (its fields are the options) nor a function"
            raise ValueError(f"env_config['tools']: {name!r:.80} {what}.")
    own = made.keywords["name"] if isinstance(made, partial) else getattr(made, "name", None)
    if own in {None, *RESERVED_NAMES, *TOOLS}:
        raise ValueError(f"env_config['tools']: {name!r:.80} needs a `name` that neither a tool nor a tag has.")
    return made
