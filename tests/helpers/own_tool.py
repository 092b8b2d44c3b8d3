"""A tool as a user writes one."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from rllib_arpo.envs.tools.tool import Tool, ToolResult


@dataclass(frozen=True, kw_only=True)
class TallyTool(Tool):
    """Keeps a list a trajectory, and says how long it is."""

    name: ClassVar[str] = "tally"
    unit: str = "items"
    timeout_s: float = 1.0
    max_result_tokens: int = 64

    def new_state(self) -> list[str]:
        return []

    async def __call__(self, argument: str, state: Any) -> ToolResult:
        state.append(argument)
        return ToolResult(f"{len(state)} {self.unit}")


@dataclass(frozen=True, kw_only=True)
class AnswerTool(TallyTool):
    """With the name of a tag."""

    name: ClassVar[str] = "answer"


@dataclass(frozen=True, kw_only=True)
class OtherPythonTool(TallyTool):
    """With the name of a tool."""

    name: ClassVar[str] = "python"


class PlainClass(Tool):
    pass
