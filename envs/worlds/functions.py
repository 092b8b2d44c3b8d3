"""Functions as tools: Python functions, and tools of LangChain and smolagents with their own schemas."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from rllib_arpo.envs.tools.schema_tool import SchemaTool
from rllib_arpo.envs.tools.tool import ToolResult, check_name
from rllib_arpo.envs.worlds.signature import Signature, answer_of


@dataclass(frozen=True, kw_only=True)
class FunctionTool(SchemaTool):
    """A function as a tool. The model reads its result, as `str` writes it, or the message of its exception.

    A coroutine function runs in the event loop of all questions, any other one in a thread. A call that is given up is
    answered in time, but its thread keeps running.

    Attributes:
        function: is called with the arguments.
        arguments: turns the JSON object that the model wrote into the function's arguments.
        timeout_s, max_result_tokens, max_concurrency, max_attempts: see `Tool`.
    """

    function: Callable[..., Any] = field(repr=False)
    arguments: Callable[[Mapping[str, Any]], tuple[tuple[Any, ...], dict[str, Any]]] = field(repr=False)
    timeout_s: float = 60.0
    max_result_tokens: int = 2048
    max_attempts: int = 1

    def read(self, argument: str | Mapping[str, Any]) -> Any:
        return self.arguments(super().read(argument))

    async def __call__(self, argument: tuple[tuple[Any, ...], dict[str, Any]]) -> ToolResult:
        args, kwargs = argument
        return ToolResult(await answer_of(self.function, *args, in_a_thread=not _is_async(self.function), **kwargs))


#: Makes the tool of a function from the tool's options.
FunctionMaker = partial[FunctionTool]


def option_names(made: Any) -> set[str]:
    """The options of a tool: of its class, or of a function."""
    if isinstance(made, partial):
        return {f.name for f in dataclasses.fields(FunctionTool)} - set(made.keywords)
    return {f.name for f in dataclasses.fields(made)}


def function_maker(found: Any) -> FunctionMaker | None:
    """The maker of a tool from a function, or from a tool of LangChain or smolagents; None: `found` is neither.

    Raises:
        ValueError: a model cannot call the function; the message lacks the subject.
    """
    schema: Any
    arguments: Any = _all_in_one
    if isinstance(found, type):
        return None
    if inspect.isroutine(found):
        signature = Signature.of(found)
        function, name, description = found, signature.name, signature.description
        schema, arguments = signature.schema, signature.read
    elif hasattr(found, "ainvoke") and hasattr(found, "get_input_schema"):
        function, name, description = found.ainvoke, found.name, found.description
        # Without the arguments that LangChain itself injects.
        schema = getattr(found, "tool_call_schema", None) or found.get_input_schema()
        schema = schema if isinstance(schema, Mapping) else schema.model_json_schema()
    elif callable(found) and isinstance(getattr(found, "inputs", None), Mapping):
        function, name, description = found, found.name, found.description
        schema, arguments = _schema_of_inputs(found.inputs), _by_name
    else:
        return None
    check_name(name)
    schema = {key: value for key, value in schema.items() if key not in ("title", "description")}
    return partial(
        FunctionTool, function=function, arguments=arguments, name=name, description=description, input_schema=schema
    )


def _schema_of_inputs(inputs: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The JSON schema of a smolagents tool: "nullable" marks what may be left out, "any" stands for all types."""
    properties: dict[str, Any] = {}
    for name, given in inputs.items():
        kind = given["type"]
        kinds = [kind] if isinstance(kind, str) else list(kind)
        properties[name] = {"description": given.get("description", "")}
        if "any" not in kinds:
            properties[name]["type"] = [*kinds, "null"] if given.get("nullable") and "null" not in kinds else kind
    required = [name for name, given in inputs.items() if not given.get("nullable")]
    return {"type": "object", "properties": properties, "required": required}


def _all_in_one(arguments: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return (dict(arguments),), {}


def _by_name(arguments: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    return (), dict(arguments)


def _is_async(function: Any) -> bool:
    return inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(type(function).__call__)
