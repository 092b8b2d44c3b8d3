"""Tools whose arguments a JSON schema describes: those of servers, functions and worlds."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

from rllib_arpo.envs.errors import ToolError
from rllib_arpo.envs.support.model_json import parse_model_json
from rllib_arpo.envs.support.texts import mapped
from rllib_arpo.envs.tools.tool import Tool, ToolResult, listed
from rllib_arpo.envs.worlds.world import Call, World


@dataclass(frozen=True, kw_only=True)
class SchemaTool(Tool):
    """A tool that takes a JSON object; one with a single parameter, a text, also takes the bare text.

    Attributes:
        input_schema: JSON schema of the object.
    """

    name: str  # type: ignore[misc]
    description: str = ""  # type: ignore[misc]
    input_schema: Mapping[str, Any] = field(repr=False)
    timeout_s: float
    max_result_tokens: int
    max_concurrency: int | None = None

    @property
    def parameters(self) -> Mapping[str, Mapping[str, Any]]:  # type: ignore[override]
        return self.input_schema.get("properties", {})

    @property
    def required(self) -> Sequence[str]:  # type: ignore[override]
        return self.input_schema.get("required", ())

    def shielded(self, shield: Callable[[str], str]) -> Tool:
        schema = mapped(self.input_schema, shield)
        return dataclasses.replace(self, description=shield(self.description), input_schema=schema)

    def schema(self) -> dict[str, Any]:
        return dict(self.input_schema)

    def text_argument(self, arguments: Mapping[str, Any]) -> str:
        return json.dumps(dict(arguments), ensure_ascii=False)

    def read(self, argument: str) -> dict[str, Any]:
        """The parameters in a call's argument.

        Raises:
            ToolError: it is not JSON, does not fit the tool's schema, or has half of a character.
        """
        try:
            arguments = parse_model_json(argument)
        except UnicodeEncodeError as error:
            raise ToolError(f"{self.name}: {error.object[error.start]!r} is half of a character.") from error
        except ValueError:
            arguments = None
        if not isinstance(arguments, dict) or (self._only_text and set(arguments) != {self._only_text}):
            if self._only_text is None:
                raise ToolError(f"{self.name} takes one JSON object with {listed(self.parameters)}.")
            arguments = {self._only_text: argument}
        _REFERENCES.set(_MIN_REFERENCES + len(argument) // _CHARS_A_REFERENCE)
        self._check(arguments)
        return arguments

    def _check(self, arguments: dict[str, Any]) -> None:
        from jsonschema.exceptions import best_match

        known = self.parameters
        if "additionalProperties" not in self.input_schema and "patternProperties" not in self.input_schema:
            unknown = next((name for name in arguments if name not in known), None)
            if unknown is not None:
                raise ToolError(f"{self.name} has no parameter {unknown!r}: it takes {listed(known)}.")
        error = best_match(self._validator.iter_errors(arguments))
        if error is not None:
            where = "".join(f" {part!r}" for part in error.absolute_path)
            raise ToolError(f"{self.name}: wrong arguments:{where} {error.message}.")

    @functools.cached_property
    def _validator(self) -> Any:
        return schema_validator(self.input_schema)

    @functools.cached_property
    def _only_text(self) -> str | None:
        """The tool's parameter if it has a single one that can be a string."""
        if len(self.parameters) != 1:
            return None
        ((name, schema),) = self.parameters.items()
        kinds = [schema, *schema.get("anyOf", ())] if isinstance(schema, Mapping) else []
        return name if any("string" in _as_list(kind.get("type", ())) for kind in kinds) else None


@dataclass(frozen=True, kw_only=True)
class WorldTool(SchemaTool):
    """One of the calls that a world takes.

    Attributes:
        name_in_world: the name by which the world knows it.
    """

    name_in_world: str
    make_world: Callable[[], World] | None = field(repr=False)  # type: ignore[misc]

    def as_call(self, argument: Mapping[str, Any]) -> Call:
        return Call(self.name_in_world, argument)

    async def __call__(self, argument: Mapping[str, Any]) -> ToolResult:
        raise TypeError(f"{self.name} acts in a world.")


#: Keywords that only the tool itself checks: their cost is not linear in the length of the arguments.
_LEFT_TO_THE_TOOL = ("pattern", "patternProperties", "uniqueItems")


#: References that one check of arguments may follow: a schema with alternatives that refer to themselves would follow
#: twice as many for each level of nesting.
_MIN_REFERENCES, _CHARS_A_REFERENCE = 500, 8
_REFERENCES: ContextVar[float] = ContextVar("references", default=math.inf)


def schema_validator(schema: Mapping[str, Any]) -> Any:
    """A `jsonschema` validator of calls' arguments, without `_LEFT_TO_THE_TOOL`.

    Raises:
        ValueError: the schema is wrong, or refers to something that it does not have, or to itself without an end.
    """
    import jsonschema
    import referencing.exceptions
    import referencing.jsonschema

    base: Any = jsonschema.Draft202012Validator
    unchecked: dict[str, Any] = dict.fromkeys(_LEFT_TO_THE_TOOL, lambda *_: ())
    for keyword in ("additionalProperties", "unevaluatedProperties"):
        unchecked[keyword] = functools.partial(_without_patterns, base.VALIDATORS[keyword])
    for keyword in ("$ref", "$dynamicRef"):
        unchecked[keyword] = functools.partial(_counted, base.VALIDATORS[keyword])
    try:
        base.check_schema(schema)
        # The empty registry: references to other places are not fetched.
        validator = jsonschema.validators.extend(base, unchecked)(schema, registry=referencing.Registry())
        root = referencing.jsonschema.DRAFT202012.create_resource(schema)
        _check_references(root, referencing.Registry().resolver_with_root(root))
        validator.is_valid({})
    except jsonschema.SchemaError as error:
        raise ValueError(error.message) from error
    except referencing.exceptions.Unresolvable as error:
        raise ValueError(f"it refers to {error.ref!r}, which it does not have") from error
    except RecursionError as error:
        raise ValueError("it refers to itself without an end") from error
    return validator


def _without_patterns(check: Any, validator: Any, allowed: Any, instance: Any, schema: Any) -> Any:
    """The check of a keyword, where the schema has no `patternProperties`, which it would match."""
    return () if "patternProperties" in schema else check(validator, allowed, instance, schema)


def _counted(check: Any, validator: Any, reference: Any, instance: Any, schema: Any) -> Any:
    """The check of a reference, if this call may follow one more.

    Raises:
        ToolError: it may not.
    """
    _REFERENCES.set(left := _REFERENCES.get() - 1)
    if left < 0:
        raise ToolError("The arguments are nested too deep for the tool's schema.")
    return check(validator, reference, instance, schema)


def _check_references(resource: Any, resolver: Any) -> None:
    """Follows each reference of a schema (a `referencing.Resource`) through those to which it leads.

    Raises:
        Unresolvable: it leads to nothing.
        RecursionError: it leads back to itself.
    """
    at, seen, where = resource.contents, set(), resolver
    while isinstance(at, Mapping) and isinstance(reference := at.get("$ref"), str):
        found = where.lookup(reference)
        if id(found.contents) in seen:
            raise RecursionError
        seen.add(id(found.contents))
        at, where = found.contents, found.resolver
    for inner in resource.subresources():
        _check_references(inner, resolver.in_subresource(inner))


def _as_list(value: Any) -> Sequence[Any]:
    return [value] if isinstance(value, str) else value
