"""Tools that take a JSON object: tools of servers, functions and worlds."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rllib_arpo.envs.errors import ToolError
from rllib_arpo.envs.support.model_json import parse_model_json
from rllib_arpo.envs.support.texts import mapped
from rllib_arpo.envs.tools.arguments import listed
from rllib_arpo.envs.tools.tool import Tool


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
        self.check(arguments)
        return arguments

    @functools.cached_property
    def _only_text(self) -> str | None:
        """The tool's parameter if it has a single one that can be a string."""
        if len(self.parameters) != 1:
            return None
        ((name, schema),) = self.parameters.items()
        kinds = [schema, *schema.get("anyOf", ())] if isinstance(schema, Mapping) else []
        return name if any("string" in _as_list(kind.get("type", ())) for kind in kinds) else None


def _as_list(value: Any) -> Sequence[Any]:
    return [value] if isinstance(value, str) else value
