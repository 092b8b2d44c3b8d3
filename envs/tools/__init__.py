"""Tools that a trajectory can call."""

from __future__ import annotations

from rllib_arpo.envs.tools.browse import BrowseTool
from rllib_arpo.envs.tools.python import PythonTool
from rllib_arpo.envs.tools.search import SearchTool
from rllib_arpo.envs.tools.tool import Tool

__all__ = ["BrowseTool", "PythonTool", "SearchTool", "Tool"]
