"""What becomes of a call: results, failures that the model reads, and bugs of tools."""

import asyncio
import sys
import threading
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest

from rllib_arpo.core.tree import ToolStatus
from rllib_arpo.envs.errors import BrokenToolError, ContractError, ToolError
from rllib_arpo.envs.tools.tool import Tool, ToolResult, cut, run_tool
from tests.helpers.calls import call
from tests.helpers.models import byte_tokenizer

OK, ERROR, TIMEOUT = ToolStatus.OK, ToolStatus.ERROR, ToolStatus.TIMEOUT
LATE = ToolResult("Time limit of 0.1 s exceeded.", TIMEOUT)


@pytest.mark.parametrize(
    ("text", "limit", "shown"),
    [
        ("01234567", 8, "01234567"),
        ("0123456789", 8, "012345\n[2 characters left out]\n89"),
        ("a" * 999 + "ä" * 5, 8, "aaaaaa\n[997 characters left out]\nä"),
        ("a" + "ä" * 5, 4, "aä\n[4 characters left out]\n"),
    ],
)
def test_long_output_is_cut_in_the_middle(text, limit, shown):
    assert cut(byte_tokenizer(), text, limit) == shown


class LongTokens:
    """A tokenizer whose tokens are 60 characters."""

    def encode(self, text, add_special_tokens):
        return [text[start : start + 60] for start in range(0, len(text), 60)]


def test_a_long_output_of_few_tokens_repeats_nothing():
    text = "".join(f"{number:060d}" for number in range(30))
    assert cut(LongTokens(), text, 16) == f"{text[:320]}\n[1160 characters left out]\n{text[-320:]}"


@dataclass(frozen=True, kw_only=True)
class OddTool(Tool):
    """Raises or returns `outcome`."""

    name: ClassVar[str] = "odd"
    timeout_s: float = 0.1
    max_result_tokens: int = 100
    outcome: Any

    async def __call__(self, argument):
        if self.outcome == "never":
            await asyncio.sleep(60)
        if isinstance(self.outcome, BaseException):
            raise self.outcome
        return self.outcome


@dataclass(frozen=True, kw_only=True)
class PlainTool(OddTool):
    def __call__(self, argument):
        return "the end"


@pytest.mark.parametrize(
    ("outcome", "result"),
    [
        ("42", ToolResult("42")),
        ("never", LATE),
        (ToolError("no such page"), ToolResult("no such page", ERROR)),
        # Results are valid Unicode.
        (ToolResult("a \ud83d b"), ToolResult("a \ufffd b")),
        (ToolError("no \ude00"), ToolResult("no \ufffd", ERROR)),
    ],
)
def test_failures_of_a_tool_are_observations(outcome, result):
    assert call(OddTool(outcome=outcome), "") == result


@pytest.mark.parametrize(
    ("tool", "error", "message"),
    [
        (OddTool(outcome=KeyError("bug")), KeyError, "'bug'"),
        (OddTool(outcome=TimeoutError("its own")), TimeoutError, "its own"),
        (OddTool(outcome=asyncio.CancelledError()), RuntimeError, "nobody has cancelled the call"),
        *(
            (OddTool(outcome=outcome), ContractError, f"The tool 'odd' must return a ToolResult or a str, not {shown}.")
            for outcome, shown in [
                (None, "None"),
                (b"42", "b'42'"),
                ({"answer": 42}, "{'answer': 42}"),
                (ToolResult(b"42"), f"{ToolResult(b'42')!r:.80}"),
            ]
        ),
        (PlainTool(outcome=""), ContractError, "The tool 'odd' has a plain `def __call__`: make it async, or set "),
    ],
)
def test_bugs_propagate_with_the_tools_name(tool, error, message):
    with pytest.raises(error) as raised:
        call(tool, "")
    assert message in str(raised.value)


class ReadingTool(OddTool):
    def read(self, argument):
        raise self.outcome


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("\n\n no number.\nIn line 3\n"), "odd cannot read its argument: no number."),
        (RecursionError(), "odd cannot read its argument: RecursionError."),
        (BrokenToolError("No."), "odd cannot read its argument: No."),
        (ToolError("A city, please."), "A city, please."),
    ],
)
@pytest.mark.parametrize("argument", ["Rome", {}])
def test_whatever_reading_an_argument_raises_is_the_models_error(error, text, argument):
    assert call(ReadingTool(outcome=error), argument) == ToolResult(text, ERROR)


async def test_a_call_that_somebody_cancels_is_cancelled():
    task = asyncio.create_task(run_tool(OddTool(outcome="never", timeout_s=60.0), ""))
    await asyncio.sleep(0.1)
    task.cancel()
    await asyncio.wait([task])
    assert task.cancelled()


@dataclass(frozen=True, kw_only=True)
class BlockingTool(OddTool):
    blocking: ClassVar[bool] = True
    outcome: threading.Event

    def __call__(self, argument):
        if argument == "stop":
            raise StopIteration
        if argument == "exit":
            sys.exit(2)
        assert self.outcome.wait(60.0)
        return "the end"


async def test_a_blocking_tool_keeps_its_limit_of_time_and_stops_nobody_else():
    ends = threading.Event()
    assert await run_tool(BlockingTool(outcome=ends), "") == LATE
    patient = BlockingTool(outcome=ends, timeout_s=60.0)
    # It waits for what the loop does meanwhile.
    running = asyncio.create_task(run_tool(patient, ""))
    await asyncio.sleep(0.01)
    ends.set()
    assert await running == ToolResult("the end")
    with pytest.raises(RuntimeError, match="the tool raised StopIteration"):
        await run_tool(patient, "stop")
    with pytest.raises(RuntimeError, match=r"the code raised SystemExit\(2\)"):
        await run_tool(patient, "exit")
