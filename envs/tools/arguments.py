"""The arguments of a call: JSON that a model wrote, checked against the schema of its tool."""

from __future__ import annotations

import functools
import json
import math
from collections.abc import Iterable, Mapping
from contextvars import ContextVar
from typing import Any

from rllib_arpo.envs.errors import ToolError

#: Serialisers and validators walk over a value recursively; deeper ones are refused so that they do not fail.
MAX_DEPTH = 32
#: Keywords that only the tool itself checks: their cost is not linear in the length of the arguments.
_LEFT_TO_THE_TOOL = ("pattern", "patternProperties", "uniqueItems")


#: References that one check of arguments may follow: a schema with alternatives that refer to themselves would follow
#: twice as many for each level of nesting.
_MIN_REFERENCES, _CHARS_A_REFERENCE = 500, 8
_REFERENCES: ContextVar[float] = ContextVar("references", default=math.inf)


def parse_model_json(text: str) -> Any:
    """The value of a JSON text.

    Raises:
        ValueError: it is not JSON, is nested more than `MAX_DEPTH` deep, has a number that JSON does not have (NaN), or
            spells half of a character ("\\ud83d").
    """
    try:
        value = json.loads(text)
    except RecursionError as error:
        raise ValueError("the JSON is nested too deep") from error
    waiting = [(value, 1)]
    while waiting:
        item, depth = waiting.pop()
        if isinstance(item, dict | list):
            if depth > MAX_DEPTH:
                raise ValueError("the JSON is nested too deep")
            waiting += [(inner, depth + 1) for inner in (item.values() if isinstance(item, dict) else item)]
    json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    return value


def schema_validator(schema: Mapping[str, Any]) -> Any:
    """A `jsonschema` validator of calls' arguments, without `_LEFT_TO_THE_TOOL`.

    Raises:
        ValueError: the schema is wrong, or one of its references leads to nothing or back to itself.
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
    """The check of a keyword, unless the schema has `patternProperties`, whose patterns it would match."""
    return () if "patternProperties" in schema else check(validator, allowed, instance, schema)


def _counted(check: Any, validator: Any, reference: Any, instance: Any, schema: Any) -> Any:
    """The check of a reference, if this check of arguments may follow one more.

    Raises:
        ToolError: it may not.
    """
    _REFERENCES.set(left := _REFERENCES.get() - 1)
    if left < 0:
        raise ToolError("The arguments are nested too deep for the tool's schema.")
    return check(validator, reference, instance, schema)


def _check_references(resource: Any, resolver: Any) -> None:
    """Follows each reference of a schema (a `referencing.Resource`) to its end.

    Raises:
        Unresolvable: one leads to nothing.
        RecursionError: one leads back to itself.
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


def check_arguments(name: str, validator: Any, arguments: Mapping[str, Any]) -> None:
    """Checks the arguments of a call of the tool `name`, whose `schema_validator` this is.

    Raises:
        ToolError: one is missing, unknown or wrong.
    """
    from jsonschema.exceptions import best_match

    schema = validator.schema
    known = schema.get("properties", {})
    if "additionalProperties" not in schema and "patternProperties" not in schema:
        unknown = next((one for one in arguments if one not in known), None)
        if unknown is not None:
            raise ToolError(f"{name} has no parameter {unknown!r}: it takes {listed(known)}.")
    _REFERENCES.set(_MIN_REFERENCES + len(json.dumps(arguments)) // _CHARS_A_REFERENCE)
    error = best_match(validator.iter_errors(arguments))
    if error is not None:
        where = "".join(f" {part!r}" for part in error.absolute_path)
        raise ToolError(f"{name}: wrong arguments:{where} {error.message}.")


def listed(names: Iterable[str]) -> str:
    """Names in a sentence."""
    return ", ".join(repr(name) for name in names) or "nothing"
