"""Tools that take a JSON object: tools of servers, functions and worlds."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rllib_arpo.envs.errors import ToolError
from rllib_arpo.envs.support.texts import mapped
from rllib_arpo.envs.tools.arguments import listed, parse_model_json
from rllib_arpo.envs.tools.tool import Tool


@dataclass(frozen=True, kw_only=True)
class SchemaTool(Tool):
    """A tool that takes a JSON object; if it has a single parameter, it also takes the bare value of that.

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

    @property
    def takes_bare_value(self) -> bool:
        """Whether prompts ask for the only parameter's value alone: its type says whether that is a text or JSON."""
        schemas = list(self.parameters.values())
        return len(schemas) == 1 and isinstance(schemas[0], Mapping) and isinstance(schemas[0].get("type"), str)

    def text_argument(self, arguments: Mapping[str, Any]) -> Any:
        """The arguments, which `read` takes as they are."""
        return arguments

    def read(self, argument: str | Mapping[str, Any]) -> dict[str, Any]:
        """The parameters in a call's argument.

        Raises:
            ToolError: it is not JSON, does not fit the tool's schema, or has half of a character.
        """
        text = argument if isinstance(argument, str) else json.dumps(dict(argument), ensure_ascii=False)
        try:
            text.encode()
            value = parse_model_json(text)
        except UnicodeEncodeError as error:
            raise ToolError(f"{self.name}: {error.object[error.start]!r} is half of a character.") from error
        except ValueError:
            value = text
        *others, last = self._readings(text, value) if isinstance(argument, str) else [value]
        for arguments in others:
            with contextlib.suppress(ToolError):
                self.check(arguments)
                return arguments
        if not isinstance(last, dict):
            raise ToolError(f"{self.name} takes one JSON object with {listed(self.parameters)}.")
        self.check(last)
        return last

    def _readings(self, text: str, value: Any) -> list[Any]:
        """What a text (`value`: its JSON value, or itself) may mean, in order of preference; the last names the error.

        A bare value of the only parameter is a text if that fits, otherwise JSON.
        """
        if len(self.parameters) != 1:
            return [value]
        (name,) = self.parameters
        bare = [{name: text}, {name: value}]
        if not isinstance(value, dict):
            return bare
        is_named = set(value) == {name} or (not value and name not in self.required)
        return [value, bare[1], value] if is_named else [*bare, value]
