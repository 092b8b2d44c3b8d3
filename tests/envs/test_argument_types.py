"""A call that is written as the prompt shows it arrives with its values: type x number x protocol x kind of tool."""

import contextlib
import json
import re
from dataclasses import dataclass
from inspect import Parameter, Signature
from itertools import pairwise
from types import SimpleNamespace
from typing import Any, Literal

import pytest

from rllib_arpo.core.tree import ToolStatus
from rllib_arpo.envs.errors import ToolError
from rllib_arpo.envs.protocols import PROTOCOLS
from rllib_arpo.envs.tools.tool import Tool
from rllib_arpo.envs.worlds.functions import function_maker
from tests.helpers.chat_templates import calling_folder

#: Type -> its hint, its JSON schema, values.
TYPES: dict[str, tuple[Any, dict[str, Any], list[Any]]] = {
    "string": (str, {"type": "string"}, ["12", "a < b", '{"b": 1}', "null"]),
    "integer": (int, {"type": "integer"}, [0, -12]),
    "number": (float, {"type": "number"}, [0.5, 2]),
    "boolean": (bool, {"type": "boolean"}, [True, False]),
    "array": (list[str], {"type": "array", "items": {"type": "string"}}, [[], ["a", "12"]]),
    "object": (dict[str, int], {"type": "object", "additionalProperties": {"type": "integer"}}, [{}, {"value": 1}]),
    "enum": (Literal["red", "12"], {"enum": ["red", "12"]}, ["red", "12"]),
    "enum of numbers": (Literal[1, 2], {"enum": [1, 2]}, [1]),
    "nullable": (int | None, {"type": ["integer", "null"]}, [None, 3]),
    "nullable text": (str | None, {"anyOf": [{"type": "string"}, {"type": "null"}]}, [None, "null", "3", "a b"]),
    "nested": (list[dict[str, list[int]]], {"type": "array", "items": {"type": "object"}}, [[{"a": [1]}, {}]]),
    "anything": (Any, {}, ["3", 3, None, {"value": [3]}, {}]),
}
#: Name of a tool -> the types of its parameters: every type alone, and beside another one.
ALONE = {f"one_{i}": {"value": kind} for i, kind in enumerate(TYPES)}
BESIDE = {f"two_{i}": {"value": kind, "other": other} for i, (kind, other) in enumerate(pairwise(TYPES))}
NAMES = ALONE | BESIDE
#: What the tools got.
ARRIVED: list[Any] = []


class Still:
    """A world in which nothing happens."""

    def reset(self, seed: int) -> str:
        return "Go on."

    def get_reward(self) -> float:
        return 0.0


@dataclass(frozen=True, kw_only=True)
class Noting(Tool):
    timeout_s: float = 10.0
    max_result_tokens: int = 99

    async def __call__(self, argument: str) -> str:
        ARRIVED.append(argument)
        return ""


class Server:
    """A client of an MCP server with these tools."""

    async def list_tools(self, **options) -> Any:
        schemas = {name: {one: TYPES[kind][1] for one, kind in kinds.items()} for name, kinds in NAMES.items()}
        objects = {name: {"type": "object", "properties": one, "required": [*one]} for name, one in schemas.items()}
        tools = [SimpleNamespace(name=name, description="", input_schema=one) for name, one in objects.items()]
        return SimpleNamespace(tools=tools, next_cursor=None)

    async def call_tool(self, name: str, arguments: dict[str, Any]) -> Any:
        ARRIVED.append(arguments)
        return SimpleNamespace(content=[], structured_content=None, is_error=False)


def noting(name: str, *own: str):
    """A function with the parameters of a tool, and further ones that it gets by position (`self`)."""

    def note(*_, **arguments) -> str:
        ARRIVED.append(arguments)
        return ""

    hints = {one: TYPES[kind][0] for one, kind in NAMES[name].items()}
    parameters = [Parameter(one, Parameter.POSITIONAL_OR_KEYWORD) for one in own]
    parameters += [Parameter(one, Parameter.KEYWORD_ONLY, annotation=hint) for one, hint in hints.items()]
    note.__name__, note.__annotations__, note.__signature__ = name, hints, Signature(parameters)
    return note


def classes() -> list[type[Tool]]:
    parameters = {name: {one: TYPES[kind][1] for one, kind in kinds.items()} for name, kinds in NAMES.items()}
    return [type(name, (Noting,), {"name": name, "parameters": one}) for name, one in parameters.items()]


#: Kind of tool -> the part of an `env_config` that has them.
KINDS = {
    "function": {"tools": [noting(name) for name in NAMES]},
    "class": {"tools": classes()},
    "method": {"world": type("Acting", (Still,), {name: noting(name, "self") for name in NAMES})},
    "MCP": {"tools": {"mcp": {"servers": {"types": {"command": "types", "shared": True}}}}},
}


def written(protocol: str, prompt: str, name: str, arguments: dict[str, Any]) -> str:
    """A call as the prompt shows it, which must show all names."""
    as_json = json.dumps(arguments)
    if protocol == "function_calling":
        assert f'"name": "{name}"' in prompt
        assert '{"name": <function-name>, "arguments": <args-json-object>}' in prompt
        return f'<tool_call>\n{{"name": "{name}", "arguments": {as_json}}}\n</tool_call>'
    (shown,) = re.findall(rf"write <{name}> (.*) </{name}>\.", prompt)
    if shown == "value":
        return f"<{name}> {as_text(arguments['value'])} </{name}>"
    assert shown == "{" + ", ".join(f'"{one}": ...' for one in arguments) + "}"
    return f"<{name}> {as_json} </{name}>"


def as_text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_every_type_arrives(begun, turn, tmp_path, monkeypatch, protocol, kind):
    @contextlib.asynccontextmanager
    async def client_of(server):
        yield Server()

    monkeypatch.setattr("rllib_arpo.envs.worlds.mcp.client_of", client_of)
    limits = {"max_context_tokens": 10**6, "max_response_tokens": 10**6, "max_tool_calls": 99}
    model = {"model_name_or_path": calling_folder(tmp_path), "protocol": protocol}
    env = begun(**{"world": Still, **KINDS[kind]}, **model, **limits)
    prompt = env.tokenizer.decode(env._prompt)
    wrong, number = [], 0
    for name, kinds in NAMES.items():
        for value in TYPES[kinds["value"]][2]:
            others = {"other": TYPES[kinds["other"]][2][0]} if "other" in kinds else {}
            arguments = {"value": value, **others}
            expected: Any = arguments
            if kind == "class":  # A `Tool` gets texts.
                expected = json.dumps(arguments) if others else as_text(value)
            ARRIVED.clear()
            text, _, info, _ = turn(env, "0", written(protocol, prompt, name, arguments))
            number += 1
            if (ARRIVED, info.tool_call and info.tool_call.status) != ([expected], ToolStatus.OK):
                wrong.append((kinds, value, ARRIVED[:], text))
    assert (wrong, number) == ([], 53)


NUMBER = {"properties": {"n": {"type": "integer"}}, "required": ["n"]}
TEXT, OPTIONAL = {"properties": {"q": {"type": "string"}}, "required": ["q"]}, {"properties": {"q": {"type": "string"}}}


@pytest.mark.parametrize(
    ("schema", "argument", "read"),
    [
        # In native calls, and in JSON objects with the parameter's name, nothing is bare.
        (OPTIONAL, {}, {}),
        (OPTIONAL, "{}", {}),
        (TEXT, "{}", {"q": "{}"}),
        (TEXT, '{"q": "a"}', {"q": "a"}),
        (TEXT, {"q": "a", "r": 1}, "t has no parameter 'r': it takes 'q'."),
        (TEXT, {}, "t: wrong arguments: 'q' is a required property."),
        (TEXT, '{"q": 3}', "t: wrong arguments: 'q' 3 is not of type 'string'."),
        (NUMBER, "three", "t: wrong arguments: 'n' 'three' is not of type 'integer'."),
        (NUMBER, '{"n": "3"}', "t: wrong arguments: 'n' '3' is not of type 'integer'."),
        (NUMBER, '{"m": 3}', "t has no parameter 'm': it takes 'n'."),
    ],
)
def test_what_is_not_as_shown(schema, argument, read):
    tool = function_maker(noting("one_0"))(name="t", input_schema={"type": "object", **schema}, arguments=dict)
    try:
        assert tool.read(argument) == read
    except ToolError as error:
        assert str(error) == read
