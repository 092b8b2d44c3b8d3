"""Draws arguments that fit a tool's schema."""

from __future__ import annotations

import math
import random
import re
from collections.abc import Mapping
from contextlib import suppress
from functools import partial, reduce
from typing import Any

from rllib_arpo.envs.errors import ToolError
from rllib_arpo.envs.tools.tool import Tool

#: Arguments are drawn at most this often until they fit the tool's schema.
MAX_DRAWS = 20
#: The share of numbers that were read before.
READ_NUMBERS = 0.9
#: Below this many levels of a schema, arrays are empty and optional values absent.
MAX_DEPTH = 10
WORD = re.compile(r"\d+(?:\.\d+)?|\w+")
_NUMBER = re.compile(r"\b\d{1,9}\b")
_FORMULA = re.compile(r"[(\d][\d ().]*(?:[-+*/][\d ().]+)+")


def random_arguments(tool: Tool, rng: random.Random, read: str = "") -> dict[str, Any]:
    """Arguments that fit the schema of `tool`, if `MAX_DRAWS` draws find some; `read`: as in `random_value`."""
    arguments: dict[str, Any] = {}
    for _ in range(MAX_DRAWS):
        arguments = random_value(tool.schema(), rng, read)
        with suppress(ToolError):
            tool.check(arguments)
            break
    return arguments


def random_value(
    schema: Mapping[str, Any],
    rng: random.Random,
    read: str = "",
    name: str = "",
    root: Any = None,
    depth: int = MAX_DEPTH,
) -> Any:
    """A value for a simple JSON schema: its `const`, one of its `enum`, or a value of its first type.

    Args:
        read: texts and numbers are taken from it.
        name: of the argument; one that is called "code" prints a formula.
        root: the schema in which references are looked up; None: `schema`.
        depth: the number of levels that may follow.
    """
    inner = partial(random_value, rng=rng, read=read, root=root or schema, depth=depth - 1)
    if "$ref" in schema:
        return inner(reduce(lambda at, key: at[key], schema["$ref"].split("/")[1:], root or schema), name=name)
    if choices := schema.get("anyOf") or schema.get("oneOf"):
        flat = [choice for choice in choices if depth > 0 or "$ref" not in choice]
        return inner(rng.choice(flat or choices), name=name)
    if "const" in schema:
        return schema["const"]
    if "enum" in schema:
        return rng.choice(schema["enum"])
    kinds = schema.get("type", "string")
    kind = kinds if isinstance(kinds, str) else kinds[0]
    if kind == "object":
        properties = schema.get("properties", {})
        required = schema.get("required", properties if depth > 0 else ())
        given = [key for key in properties if key in required or (depth > 0 and rng.random() < 0.5)]
        return {key: inner(properties[key], name=key) for key in given}
    if kind == "array":
        return [inner(schema.get("items", {}), name=name) for _ in range(rng.randint(0, 3) if depth > 0 else 0)]
    number = _number(schema, kind, rng, read)
    values = {"integer": number, "number": float(number), "boolean": bool(number % 2), "null": None}
    return values[kind] if kind in values else _text(name, number, rng, read)


def _number(schema: Mapping[str, Any], kind: str, rng: random.Random, read: str) -> float:
    low = schema.get("minimum", min(0, schema.get("maximum", 0)))
    high = schema.get("maximum", low + 9)
    known = [number for number in map(int, _NUMBER.findall(read)) if low <= number <= schema.get("maximum", number)]
    if known and rng.random() < READ_NUMBERS:
        return rng.choice(known)
    return rng.uniform(low, high) if kind == "number" else rng.randint(math.ceil(low), math.floor(high))


def _text(name: str, number: float, rng: random.Random, read: str) -> str:
    if name == "code":
        return f"print({rng.choice(_FORMULA.findall(read) or [f'{number} * 2']).strip()})"
    words = WORD.findall(read) or ["text", str(number)]
    begin = rng.randrange(len(words))
    return " ".join(words[begin : begin + rng.randint(1, 3)])
