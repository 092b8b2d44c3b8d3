"""A tool as a user writes one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from rllib_arpo.envs.tools.tool import Tool, ToolResult


@dataclass(frozen=True, kw_only=True)
class TallyTool(Tool):
    """Says how long a text is."""

    name: ClassVar[str] = "tally"
    unit: str = "letters"
    timeout_s: float = 1.0
    max_result_tokens: int = 64

    async def __call__(self, argument: str) -> ToolResult:
        return ToolResult(f"{len(argument)} {self.unit}")


@dataclass(frozen=True, kw_only=True)
class OtherPythonTool(TallyTool):
    """With the name of a tool."""

    name: ClassVar[str] = "python"


@dataclass(frozen=True, kw_only=True)
class MisspeltTool(TallyTool):
    """With a type of no JSON schema."""

    parameters: ClassVar = {"text": {"type": "integr"}}
