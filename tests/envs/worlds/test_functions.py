"""Functions as tools, and those of LangChain and smolagents, by stand-ins of the same shape."""

from __future__ import annotations

import asyncio
import importlib
import json
import sys
import threading
import time
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
from pydantic import BaseModel, Field

from rllib_arpo.core.tree import ToolStatus
from rllib_arpo.envs.errors import BrokenToolError, ToolError
from rllib_arpo.envs.worlds.functions import function_maker
from tests.helpers.approved import assert_approved
from tests.helpers.calls import call
from tests.helpers.other_python import packages_with

SCHEMA = Path(__file__).with_name("draw.json")


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Point(BaseModel):
    x: int
    y: int = 0


def draw(
    points: list[Point],
    colour: Colour = Colour.RED,
    unit: Literal["mm", "cm"] = "mm",
    title: str | None = None,
    scale: dict[str, float] = {},  # noqa: B006
    schema: Annotated[int, Field(ge=1, description="Its own words.")] = 1,
    anything=None,
    **more: str,
) -> str:
    """Draws points.

    All of them at once.

    Args:
        points: where; the first
            is the corner.
        schema: not these words.

    Returns:
        What was drawn.
    """
    return f"{points[0]!r} {colour} {unit} {title} {scale} {schema} {anything} {more}"


def tool_of(function: Any, **options):
    return function_maker(function)(**options)


def said(tool, argument: str | dict) -> tuple[str, ToolStatus]:
    result = call(tool, argument)
    return result.text, result.status


def test_type_hints_and_the_docstring_make_the_schema_of_the_file():
    tool = tool_of(draw)
    assert (tool.name, tool.description) == ("draw", "Draws points.\n\nAll of them at once.")
    schema = tool.schema()
    assert schema.pop("$defs").keys() == {"Colour", "Point"}
    assert_approved(SCHEMA, json.dumps(schema, indent=1) + "\n")


def label(text: Annotated[str, Field(pattern="^a")]): ...


def test_patterns_are_pydantics_to_check():
    text, status = said(tool_of(label), "b")
    assert (text.partition(" should")[0], status) == ("label: wrong arguments: 'text' String", ToolStatus.ERROR)


def divide(a: float, b: float):
    return a / b


def lost():
    raise LookupError


def refusing():
    raise ToolError("There is nobody.")


def threaded():
    return threading.current_thread() is threading.main_thread()


async def awaited():
    return threaded()


def leaving():
    sys.exit(2)


async def leaving_late():
    sys.exit("Bye.")


class TimedOut(BaseException):
    """As `func_timeout.FunctionTimedOut`, which is no `Exception`."""


def timed_out():
    raise TimedOut("after 2 s")


async def waiting_for_a_cancelled_task():
    task = asyncio.ensure_future(asyncio.sleep(1))
    task.cancel()
    await task


def slow():
    time.sleep(1)


@pytest.mark.parametrize(
    ("function", "given", "text", "status"),
    [
        (draw, {"points": [{"x": 1}], "colour": "blue", "scale": {"a": 2}},
         "Point(x=1, y=0) Colour.BLUE mm None {'a': 2.0} 1 None {}", ToolStatus.OK),
        (divide, {"a": 1, "b": 0}, "float division by zero", ToolStatus.ERROR),
        (lost, {}, "LookupError", ToolStatus.ERROR),
        (refusing, {}, "There is nobody.", ToolStatus.ERROR),
        (leaving, {}, "SystemExit(2)", ToolStatus.ERROR),
        (leaving_late, {}, "SystemExit('Bye.')", ToolStatus.ERROR),
        (timed_out, {}, "after 2 s", ToolStatus.ERROR),
        (waiting_for_a_cancelled_task, {}, "CancelledError", ToolStatus.ERROR),
        # Plain functions wait in threads, and coroutine functions in the loop.
        (threaded, {}, "False", ToolStatus.OK),
        (awaited, {}, "True", ToolStatus.OK),
        (slow, {}, "Time limit of 0.3 s exceeded.", ToolStatus.TIMEOUT),
    ],
)  # fmt: skip
def test_what_a_function_returns_or_raises_is_what_the_model_reads(function, given, text, status):
    timeout_s = 0.3 if function is slow else 60.0
    assert said(tool_of(function, timeout_s=timeout_s), given) == (text, status)


def test_a_broken_tool_is_no_error_of_the_model():
    def broken():
        raise BrokenToolError("gone")

    with pytest.raises(BrokenToolError, match=r"^gone$"):
        said(tool_of(broken), {})


@pytest.mark.packages
@pytest.mark.timeout(1800)
@pytest.mark.parametrize(
    ("package", "options"), [("langchain_core.tools", {"parse_docstring": True}), ("smolagents", None)]
)
def test_tools_of_other_packages_keep_their_schemas(package, options, monkeypatch):
    agents = packages_with("agents", "langchain-core==1.8.3", "smolagents==1.26.0")
    monkeypatch.setattr(sys, "path", [*sys.path, agents])
    tool = importlib.import_module(package).tool

    def add(a: int, b: int | None = None) -> int:
        """Adds.

        Args:
            a: the first
            b: the second
        """
        return a + (b or 10)

    added = tool_of(tool(add) if options is None else tool(**options)(add))
    schema = added.schema()
    assert (added.name, added.description, schema["required"]) == ("add", "Adds.", ["a"])
    assert {name: part["description"] for name, part in schema["properties"].items()} == {
        "a": "the first",
        "b": "the second",
    }
    assert schema["properties"]["a"]["type"] == "integer"
    assert said(added, {"a": 1, "b": 2}) == ("3", ToolStatus.OK)
    assert said(added, {"a": 1, "b": None}) == said(added, {"a": 1}) == ("11", ToolStatus.OK)
