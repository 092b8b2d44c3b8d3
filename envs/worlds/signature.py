"""How a model calls a function: a JSON schema from its type hints, and its arguments from JSON."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from rllib_arpo.envs.errors import BrokenToolError, ContractError, RaisedToolError, ToolError
from rllib_arpo.envs.support.loop_thread import in_thread
from rllib_arpo.envs.support.texts import first_line

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
    except Exception as error:
        raise RaisedToolError(error) from error
    return result if isinstance(result, str) else str(result)
