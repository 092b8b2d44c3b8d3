"""What the worlds of servers have in common: texts from JSON, and actions from texts."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

from rllib_arpo.envs.errors import ToolError
from rllib_arpo.envs.rewards import FinishedPath, Score
from rllib_arpo.envs.support.model_json import parse_model_json
from rllib_arpo.envs.support.texts import first_line
from rllib_arpo.envs.support.validation import import_named
from rllib_arpo.envs.worlds.world import World

#: What a server shows, as JSON -> what the model reads.
Show = Callable[[Any], str]
#: The text of a turn -> the action as JSON. The model reads what it raises.
Read = Callable[[str], Any]


class ServedWorld(World):
    """A world whose state is a server's, hence a fork repeats what its parent did in a session of its own.

    Its accuracy is what its replies pay, between 0 and 1.
    """

    forks_by = "replay"

    def __init__(self) -> None:
        self.paid = 0.0

    async def score(self, path: FinishedPath) -> Score | None:
        return Score(0.0, min(max(self.paid, 0.0), 1.0))


def reader(given: Read | str | None) -> Read:
    """`given` as a function: "module:function"; a field's name, which gets the text; None: the text is a JSON object.

    Raises:
        ValueError: it is neither.
    """
    if isinstance(given, str) and ":" not in given:
        return lambda text: {given: text}
    found = _function(given, "read") or _object
    return lambda text: _read(found, text)


def shower(given: Show | str | None) -> Show:
    """`given` as a function: "module:function"; a field's name; None: the only field if it has a text, else JSON.

    Raises:
        ValueError: it is neither.
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
    found = import_named(given, "world") if isinstance(given, str) else given
    if found is not None and not callable(found):
        raise ValueError(f"env_config['world']: {key!r} must be a field, a function or its name, not {given!r:.80}.")
    return found


def _read(read: Read, text: str) -> Any:
    try:
        return read(text)
    except ToolError:
        raise
    except Exception as error:
        raise ToolError(first_line(error)) from error


def _object(text: str) -> Any:
    try:
        found = parse_model_json(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ToolError("An action is one JSON object.")
    return found
