"""Python functions as tools, and tools of LangChain and smolagents with their own schemas."""

from __future__ import annotations

import dataclasses
import inspect
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from rllib_arpo.envs.errors import BrokenToolError, ContractError, RaisedToolError, ToolError
from rllib_arpo.envs.support.loop_thread import in_thread, raised_by_code
from rllib_arpo.envs.support.texts import first_line
from rllib_arpo.envs.tools.schema_tool import SchemaTool
from rllib_arpo.envs.tools.tool import ToolResult, check_name

#: Parameters of these kinds have no name that a model could write.
_NAMELESS = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.VAR_POSITIONAL)


@dataclass(frozen=True, eq=False)
class Signature:
    """How a model calls a function.

    Attributes:
        name: the function's name.
        description: the docstring without its sections.
        schema: JSON schema of the arguments, an object; `Args` of a Google-style docstring describe them.
    """

    name: str
    description: str
    schema: Mapping[str, Any]
    _adapter: Any

    @classmethod
    def of(cls, function: Callable[..., Any]) -> Signature:
        """The signature of a function, or of a bound method.

        Raises:
            ValueError: a parameter has no name, or a type without a JSON schema; the message lacks the subject.
        """
        import pydantic
        from transformers.utils.chat_template_utils import parse_google_format_docstring

        try:
            signature = inspect.signature(function)
            hints = typing.get_type_hints(function, include_extras=True)
        except (ValueError, NameError, TypeError) as error:
            raise ValueError(f"its parameters cannot be read ({first_line(error)})") from error
        given = [one for one in signature.parameters.values() if one.kind != inspect.Parameter.VAR_KEYWORD]
        for parameter in given:
            if parameter.kind in _NAMELESS:
                raise ValueError(f"its parameter {parameter.name!r} cannot be given by name")
        # Pydantic reads functions: it gets a twin, which only returns its arguments.
        twin: Any = lambda *args, **kwargs: (args, kwargs)  # noqa: E731
        twin.__signature__, twin.__annotations__ = signature.replace(parameters=given), hints
        try:
            adapter = pydantic.TypeAdapter(twin)
            schema = adapter.json_schema()
            # `SchemaTool` itself refuses unknown parameters.
            schema.pop("additionalProperties", None)
        except (pydantic.PydanticUserError, ValueError) as error:
            raise ValueError(f"its type hints make no JSON schema ({first_line(error)})") from error
        description, described, _ = parse_google_format_docstring(inspect.getdoc(function) or "")
        for name, parameter_schema in schema.get("properties", {}).items():
            parameter_schema.pop("title", None)  # It would repeat the name.
            if name in (described or {}):
                parameter_schema.setdefault("description", described[name])
        schema.setdefault("properties", {})
        return cls(function.__name__, description or "", schema, adapter)

    def read(self, arguments: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The positional and the other arguments as values of their types, with defaults.

        Raises:
            ToolError: one of them does not fit.
        """
        import pydantic

        try:
            return self._adapter.validate_python(dict(arguments))
        except pydantic.ValidationError as error:
            first = error.errors()[0]
            where = "".join(f" {part!r}" for part in first["loc"])
            raise ToolError(f"{self.name}: wrong arguments:{where} {first['msg']}.") from error


async def called(function: Callable[[], Any], in_a_thread: bool) -> Any:
    """What a function or coroutine function returns."""
    result = await in_thread(function) if in_a_thread else function()
    return await result if inspect.isawaitable(result) else result


async def answer_of(function: Callable[..., Any], *args: Any, in_a_thread: bool, **kwargs: Any) -> str:
    """The result of a function or coroutine function as the model reads it; `str` writes what is not a text.

    Raises:
        ToolError: the function raised an exception, which the model reads.
        BrokenToolError, ContractError: the function raised one.
    """
    try:
        result = await called(partial(function, *args, **kwargs), in_a_thread)
    except (ToolError, BrokenToolError, ContractError):
        raise
    except BaseException as error:
        if not raised_by_code(error):
            raise
        raise RaisedToolError(error) from error
    return result if isinstance(result, str) else str(result)


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
