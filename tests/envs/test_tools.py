import asyncio
from dataclasses import dataclass
from typing import ClassVar

import pytest

from rllib_arpo.core.tree import ToolStatus
from rllib_arpo.envs.errors import ToolError
from rllib_arpo.envs.tools.tool import Tool, ToolResult, cut, run_tool
from tests.helpers.models import byte_tokenizer

OK, ERROR, TIMEOUT = ToolStatus.OK, ToolStatus.ERROR, ToolStatus.TIMEOUT


def call(tool: Tool, argument: str) -> ToolResult:
    return asyncio.run(run_tool(tool, argument, None))


def test_long_output_is_cut_in_the_middle():
    tokenizer = byte_tokenizer()
    assert cut(tokenizer, "01234567", 8) == "01234567"
    assert cut(tokenizer, "0123456789", 8) == "012345\n[2 characters left out]\n89"
    assert cut(tokenizer, "a" * 999 + "ä" * 5, 8) == "aaaaaa\n[997 characters left out]\nä"
    assert cut(tokenizer, "a" + "ä" * 5, 4) == "aä\n[4 characters left out]\n"


@dataclass(frozen=True, kw_only=True)
class OddTool(Tool):
    name: ClassVar[str] = "odd"
    timeout_s: float = 0.1
    max_result_tokens: int = 100

    async def __call__(self, argument, state):
        if argument == "sleep":
            await asyncio.sleep(60)
        if argument == "fail":
            raise ToolError("no such page")
        if argument == "half an emoji":
            return ToolResult("a \ud83d b")
        if argument == "fail in half":
            raise ToolError("no \ude00")
        raise KeyError(argument)


def test_failures_of_a_tool_are_observations_and_bugs_propagate():
    assert call(OddTool(), "sleep") == ToolResult("Time limit of 0.1 s exceeded.", TIMEOUT)
    assert call(OddTool(), "fail") == ToolResult("no such page", ERROR)
    with pytest.raises(KeyError):
        call(OddTool(), "bug")


def test_results_are_valid_unicode():
    assert call(OddTool(), "half an emoji") == ToolResult("a \ufffd b")
    assert call(OddTool(), "fail in half") == ToolResult("no \ufffd", ERROR)
