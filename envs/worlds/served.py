"""What the worlds of servers have in common: texts from JSON, and actions from texts."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from rllib_arpo.envs.errors import ToolError, as_tool_error
from rllib_arpo.envs.support.model_json import parse_model_json
from rllib_arpo.envs.support.validation import function_named

#: What a server shows, as JSON -> what the model reads.
Show = Callable[[Any], str]
#: The text of a turn -> the action as JSON. The model reads what it raises.
Read = Callable[[str], Any]


def reader(given: Read | str | None) -> Read:
    """`given` as a function: "module:function"; a field's name, which gets the text; None: the text is a JSON object.

    Raises:
        ValueError: it is none of these.
    """
    if isinstance(given, str) and ":" not in given:
        return lambda text: {given: text}
    found = _function(given, "read") or _object
    return lambda text: _read(found, text)


def shower(given: Show | str | None) -> Show:
    """`given` as a function: "module:function"; a field's name; None: the only field if it has a text, else JSON.

    Raises:
        ValueError: it is none of these.
    """
    if isinstance(given, str) and ":" not in given:
        return lambda shown: as_text(shown.get(given))
    return _function(given, "show") or as_text


def as_text(shown: Any) -> str:
    """A JSON value as text: the only field's if it has one, and nothing for nothing."""
    if isinstance(shown, Mapping) and len(shown) == 1:
        (only,) = shown.values()
        shown = only if isinstance(only, str) else shown
    if isinstance(shown, str):
        return shown
    return json.dumps(shown, ensure_ascii=False) if shown not in (None, {}, []) else ""


def _function(given: Any, key: str) -> Any:
    return function_named(given, "world", f"env_config['world']: {key!r} must be a field, a function or its name")


def _read(read: Read, text: str) -> Any:
    with as_tool_error():
        return read(text)


def _object(text: str) -> Any:
    try:
        found = parse_model_json(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ToolError("An action is one JSON object.")
    return found
