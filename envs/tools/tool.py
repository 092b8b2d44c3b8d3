"""The interface of a tool: text in, text and a status out; failures are observations, bugs propagate."""

from __future__ import annotations

import asyncio
import copy
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any, ClassVar

from rllib_arpo.core.tree import ToolStatus


class ToolError(Exception):
    """The call failed because of its argument; the message becomes the observation, with `ToolStatus.ERROR`."""


class BrokenToolError(Exception):
    """The tool itself is broken and could not be brought back: the trajectory ends with `StopReason.BROKEN_TOOL`."""


@dataclass(frozen=True, slots=True)
class ToolResult:
    """What the model reads (`text`, without tags) and what became of the call."""

    text: str
    status: ToolStatus = ToolStatus.OK


class Tool(ABC):
    """A tool; one instance serves all trajectories of an environment at once.

    A subclass is a dataclass whose fields are its configuration (`env_config["tools"][name]`). A tool that keeps
    something per trajectory returns it from `new_state`, changes it in `__call__`, and says how to copy it for a fork.
    A tool without such a state sets `stateless`.

    Attributes:
        name: the tag that calls it.
        stateless: whether there is nothing to copy on a fork.
        timeout_s: seconds after which a call is given up with `ToolStatus.TIMEOUT`.
        max_result_chars: longer results are cut in the middle.
    """

    name: ClassVar[str]
    stateless: ClassVar[bool] = False
    timeout_s: float
    max_result_chars: int

    def prepare(self) -> None:
        """Does what is slow at the first call (starting a process, building an index); blocks. Optional."""
        return None

    def new_state(self) -> Any:
        """The state of a fresh trajectory."""
        return None

    def copy_state(self, state: Any) -> Any:
        """An independent copy of a trajectory's state."""
        return copy.deepcopy(state)

    @abstractmethod
    async def __call__(self, argument: str, state: Any) -> ToolResult:
        """Runs one call; may change `state`.

        Raises:
            ToolError: the argument is at fault.
            BrokenToolError: the tool cannot be used any more.
        """


async def run_tool(tool: Tool, argument: str, state: Any) -> ToolResult:
    """Runs one call under the tool's time limit and cuts its result to the tool's length limit."""
    try:
        async with asyncio.timeout(tool.timeout_s):
            result = await tool(argument, state)
    except TimeoutError:
        return ToolResult(f"Time limit of {tool.timeout_s:g} s exceeded.", ToolStatus.TIMEOUT)
    except ToolError as error:
        result = ToolResult(str(error), ToolStatus.ERROR)
    return ToolResult(cut(result.text, tool.max_result_chars), result.status)


def cut(text: str, max_chars: int) -> str:
    """`text`, with the middle left out when it is longer than `max_chars`."""
    if len(text) <= max_chars:
        return text
    tail = max_chars // 4
    return f"{text[: max_chars - tail]}\n[{len(text) - max_chars} characters left out]\n{text[len(text) - tail :]}"
