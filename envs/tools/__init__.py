"""Tools that a trajectory can call."""

from __future__ import annotations

from rllib_arpo.envs.tools.python import PythonTool
from rllib_arpo.envs.tools.search import SearchTool
from rllib_arpo.envs.tools.tool import Tool

#: Name -> tool class, a dataclass whose fields are its configuration.
TOOLS: dict[str, type[Tool]] = {tool.name: tool for tool in (PythonTool, SearchTool)}
