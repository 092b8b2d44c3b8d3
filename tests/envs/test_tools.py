import asyncio
import re
import threading
from dataclasses import dataclass
from typing import ClassVar

import pytest

from rllib_arpo.core.tree import ToolStatus
from rllib_arpo.envs.errors import ContractError, ToolError
from rllib_arpo.envs.tools.tool import Tool, ToolResult, cut, run_tool
from tests.helpers.calls import call
from tests.helpers.models import byte_tokenizer

OK, ERROR, TIMEOUT = ToolStatus.OK, ToolStatus.ERROR, ToolStatus.TIMEOUT


def test_long_output_is_cut_in_the_middle():
    tokenizer = byte_tokenizer()
    assert cut(tokenizer, "01234567", 8) == "01234567"
    assert cut(tokenizer, "0123456789", 8) == "012345\n[2 characters left out]\n89"
    assert cut(tokenizer, "a" * 999 + "ä" * 5, 8) == "aaaaaa\n[997 characters left out]\nä"
    assert cut(tokenizer, "a" + "ä" * 5, 4) == "aä\n[4 characters left out]\n"


OTHERS = {"text": "42", "nothing": None, "bytes": b"42", "dict": {"answer": 42}, "bytes in it": ToolResult(b"42")}


@dataclass(frozen=True, kw_only=True)
class OddTool(Tool):
    name: ClassVar[str] = "odd"
    timeout_s: float = 0.1
    max_result_tokens: int = 100

    async def __call__(self, argument):
        if argument == "sleep":
            await asyncio.sleep(60)
        if argument == "fail":
            raise ToolError("no such page")
        if argument == "own limit":
            raise TimeoutError("the tool's own")
        if argument == "half an emoji":
            return ToolResult("a \ud83d b")
        if argument == "fail in half":
            raise ToolError("no \ude00")
        if argument == "cancel":
            raise asyncio.CancelledError
        if argument in OTHERS:
            return OTHERS[argument]
        raise KeyError(argument)


def test_failures_of_a_tool_are_observations_and_bugs_propagate():
    assert call(OddTool(), "sleep") == ToolResult("Time limit of 0.1 s exceeded.", TIMEOUT)
    assert call(OddTool(), "fail") == ToolResult("no such page", ERROR)
    with pytest.raises(KeyError):
        call(OddTool(), "bug")
    with pytest.raises(TimeoutError, match="the tool's own"):
        call(OddTool(), "own limit")


def test_a_tool_returns_a_result_or_a_text_and_anything_else_ends_the_run_with_its_name():
    assert call(OddTool(), "text") == ToolResult("42")
    for argument, value in list(OTHERS.items())[1:]:
        message = f"The tool 'odd' must return a ToolResult or a str, not {value!r:.80}."
        with pytest.raises(ContractError, match=f"^{re.escape(message)}$"):
            call(OddTool(), argument)


@dataclass(frozen=True, kw_only=True)
class PlainTool(OddTool):
    name: ClassVar[str] = "plain"

    def __call__(self, argument):
        return "the end"


def test_a_tool_that_waits_without_saying_so_ends_the_run_with_its_name():
    with pytest.raises(ContractError, match=r"^The tool 'plain' has a plain `def __call__`: say async, or blocking = "):
        call(PlainTool(), "text")


def test_a_cancellation_that_nobody_asked_for_is_the_tools_bug_and_another_one_is_not():
    with pytest.raises(RuntimeError, match="nobody has cancelled the call"):
        call(OddTool(), "cancel")

    async def cancelled() -> bool:
        task = asyncio.create_task(run_tool(OddTool(timeout_s=60.0), "sleep"))
        await asyncio.sleep(0.1)
        task.cancel()
        await asyncio.wait([task])
        return task.cancelled()

    assert asyncio.run(cancelled())


ENDS = threading.Event()


@dataclass(frozen=True, kw_only=True)
class BlockingTool(OddTool):
    name: ClassVar[str] = "blocking"
    blocking: ClassVar[bool] = True

    def __call__(self, argument):
        if argument == "stop":
            raise StopIteration
        assert ENDS.wait(60.0)
        return "the end"


def test_a_blocking_tool_keeps_its_limit_of_time_and_stops_nobody_else():
    async def both():
        """The other call ends while the blocking one waits for it."""

        async def other():
            await asyncio.sleep(0)
            ENDS.set()

        return await asyncio.gather(run_tool(BlockingTool(timeout_s=60.0), ""), other())

    ENDS.clear()
    assert call(BlockingTool(), "") == ToolResult("Time limit of 0.1 s exceeded.", TIMEOUT)
    assert asyncio.run(both())[0] == ToolResult("the end")
    with pytest.raises(RuntimeError, match="the tool raised StopIteration"):
        call(BlockingTool(timeout_s=5.0), "stop")


def test_results_are_valid_unicode():
    assert call(OddTool(), "half an emoji") == ToolResult("a \ufffd b")
    assert call(OddTool(), "fail in half") == ToolResult("no \ufffd", ERROR)
