"""Tools of Model Context Protocol servers as tools."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import re
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, ClassVar

from rllib_arpo.core.tree import ToolStatus
from rllib_arpo.envs.errors import BrokenToolError, ToolError
from rllib_arpo.envs.support.model_json import parse_model_json
from rllib_arpo.envs.support.validation import check_known
from rllib_arpo.envs.tools.mcp_client import McpServer, shown
from rllib_arpo.envs.tools.mcp_session import McpSession, session_of
from rllib_arpo.envs.tools.tool import RESERVED_NAMES, Tool, ToolResult, ToolSet, listed

#: Names that can stand between "<" and ">" as a tag.
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*")


@dataclass(frozen=True, kw_only=True)
class McpTool(Tool):
    """One tool of an MCP server.

    The argument is a JSON object of the parameters; a tool with a single parameter, a text, also takes the bare text.

    Attributes:
        session: the session with the server, if trajectories share it; otherwise the one that a trajectory's begins as
            a fork of.
        server_name: the tool's name on the server.
        input_schema: JSON schema of the arguments, as the server has it.
    """

    name: str  # type: ignore[misc]
    description: str  # type: ignore[misc]
    session: McpSession = field(repr=False)
    server_name: str
    input_schema: Mapping[str, Any] = field(repr=False)
    timeout_s: float
    max_result_tokens: int
    max_concurrency: int | None

    @property
    def parameters(self) -> Mapping[str, Mapping[str, Any]]:  # type: ignore[override]
        return self.input_schema.get("properties", {})

    @property
    def required(self) -> Sequence[str]:  # type: ignore[override]
        return self.input_schema.get("required", ())

    @property
    def stateless(self) -> bool:  # type: ignore[override]
        return self.session.server.shared

    @property
    def state_key(self) -> Hashable:
        return self.session

    def new_state(self) -> McpSession:
        return self.session.fork()

    def copy_state(self, state: McpSession) -> McpSession:
        return state.fork()

    async def open_state(self, state: McpSession | None) -> None:
        if state is not None:
            await state.open(self.timeout_s)

    async def close_state(self, state: McpSession) -> None:
        await state.close()

    def shielded(self, shield: Callable[[str], str]) -> Tool:
        schema = _mapped(self.input_schema, shield)
        return dataclasses.replace(self, description=shield(self.description), input_schema=schema)

    def schema(self) -> dict[str, Any]:
        return dict(self.input_schema)

    def text_argument(self, arguments: Mapping[str, Any]) -> str:
        return json.dumps(dict(arguments), ensure_ascii=False)

    async def __call__(self, arguments: Mapping[str, Any], state: McpSession | None) -> ToolResult:
        result = await (state or self.session).call(self.server_name, arguments)
        return ToolResult(shown(result), ToolStatus.ERROR if result.is_error else ToolStatus.OK)

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
class McpTools(ToolSet):
    """The tools of MCP servers, each under its own name, or as <server>_<tool> if that name is taken.

    Every process that reads the configuration asks each server for its tools. A trajectory that calls one has a session
    of its own, and its own server if a command starts it, until its question ends; a fork repeats its parent's calls in
    a new session, and is refused if an answer differs. With `"shared": True` all trajectories of a process share one
    session.

    Attributes:
        servers: server name -> the fields of an `McpServer`.
        timeout_s, max_result_tokens, max_concurrency: of every tool.
        start_timeout_s: seconds within which a server must answer for the first time.
    """

    name: ClassVar[str] = "mcp"
    servers: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    timeout_s: float = 30.0
    max_result_tokens: int = 2048
    max_concurrency: int | None = None
    start_timeout_s: float = 30.0

    def __post_init__(self) -> None:
        if not self.servers:
            raise ValueError("The mcp tools need `servers`: name -> {'command': ..., 'args': [...]} or {'url': ...}.")
        for name, fields in self.servers.items():
            check_known(fields, [f.name for f in dataclasses.fields(McpServer)], f"key of the MCP server {name!r}")

    def expand(self) -> dict[str, Tool]:
        """Starts the servers, or reaches them, and makes a tool of each of theirs."""
        found = [(name, tool) for name in self.servers for tool in self._tools_of(name)]
        count = Counter(tool.name for _, tool in found)
        tools: dict[str, Tool] = {}
        for server, tool in found:
            taken = count[tool.name] > 1 or tool.name in _taken_names()
            name = f"{server}_{tool.name}" if taken else tool.name
            if not _NAME.fullmatch(name):
                raise ValueError(
                    f"The MCP server {server!r}: {name!r} cannot be the name of a tool, which has letters, digits and"
                    " '_', '.', '-' only."
                )
            if name in tools:
                raise ValueError(f"The MCP server {server!r}: there are two tools {name!r}.")
            tools[name] = dataclasses.replace(tool, name=name)
        return tools

    def _tools_of(self, server_name: str) -> list[McpTool]:
        try:
            server = McpServer(**self.servers[server_name])
            session = session_of(server, self.start_timeout_s)
            offered = session.list_tools()
        except ModuleNotFoundError as error:
            raise ValueError(f"The mcp tools need the package {error.name} (pip install mcp).") from error
        except (ValueError, BrokenToolError) as error:
            raise ValueError(f"The MCP server {server_name!r}: {error}") from error
        if server.tools is not None:
            check_known(server.tools, [tool.name for tool in offered], f"tool of the MCP server {server_name!r}")
            offered = [tool for tool in offered if tool.name in server.tools]
        return [self._tool(session, server_name, tool) for tool in offered]

    def _tool(self, session: McpSession, server_name: str, tool: Any) -> McpTool:
        try:
            schema_validator(tool.input_schema)
        except ValueError as error:
            raise ValueError(
                f"The MCP server {server_name!r}: the schema of its tool {tool.name!r} is wrong ({error})."
            ) from error
        return McpTool(
            name=tool.name,
            server_name=tool.name,
            description=tool.description or "",
            session=session,
            input_schema=tool.input_schema,
            timeout_s=self.timeout_s,
            max_result_tokens=self.max_result_tokens,
            max_concurrency=self.max_concurrency,
        )


#: Keywords that only the server checks: their cost is not linear in the length of the arguments.
_LEFT_TO_THE_SERVER = ("pattern", "patternProperties", "uniqueItems")


#: References that one check of arguments may follow: a schema with alternatives that refer to themselves would follow
#: twice as many for each level of nesting.
_MIN_REFERENCES, _CHARS_A_REFERENCE = 500, 8
_REFERENCES: ContextVar[float] = ContextVar("references", default=math.inf)


def schema_validator(schema: Mapping[str, Any]) -> Any:
    """A `jsonschema` validator of calls' arguments, without `_LEFT_TO_THE_SERVER`.

    Raises:
        ValueError: the schema is wrong, or refers to something that it does not have, or to itself without an end.
    """
    import jsonschema
    import referencing.exceptions
    import referencing.jsonschema

    base: Any = jsonschema.Draft202012Validator
    unchecked: dict[str, Any] = dict.fromkeys(_LEFT_TO_THE_SERVER, lambda *_: ())
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


def _taken_names() -> frozenset[str]:
    # Imported here, because the registry needs this file.
    from rllib_arpo.envs.tools import TOOLS

    return RESERVED_NAMES.union(TOOLS)


def _mapped(value: Any, change: Callable[[str], str]) -> Any:
    """A JSON value with all its texts changed, those of its keys too."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {change(key): _mapped(inner, change) for key, inner in value.items()}
    return [_mapped(inner, change) for inner in value] if isinstance(value, list) else value


def _as_list(value: Any) -> Sequence[Any]:
    return [value] if isinstance(value, str) else value
