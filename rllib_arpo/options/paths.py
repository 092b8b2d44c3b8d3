"""The paths in a configuration become absolute when they are set: Tune runs each trial in a folder of its own."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

#: Keys of a configuration whose values may contain paths.
KEYS_WITH_PATHS = {"model_name_or_path", "env_config", "evaluation_config"}
#: Keys of files that a run may make itself, so they need not exist yet.
MADE = {"cache", "cache_path"}
#: Keys of files or folders. Under any other key a text is a path if it names an existing file and has a dot or a slash.
NAMED = {"path", "index", "hub_id", "model_name_or_path", "cwd"}
#: Tune's key for the values that trials try in turn.
GRID = "grid_search"


def with_absolute_paths(value: Any, key: Any = "") -> Any:
    """`value`, the value of `key`, with an absolute path in place of each text in it that is a path here."""
    if type(value) in (dict, list, tuple):
        pairs = value.items() if isinstance(value, Mapping) else ((key, inner) for inner in value)
        inner = [(name, with_absolute_paths(inner, key if name == GRID else name)) for name, inner in pairs]
        return dict(inner) if isinstance(value, Mapping) else type(value)(one for _, one in inner)
    if isinstance(value, Path) or (isinstance(value, str) and _is_path(value, key)):
        return type(value)(os.path.abspath(os.path.expanduser(value)))
    return value


def _is_path(text: str, key: Any) -> bool:
    if not text or "://" in text:
        return False
    path = os.path.expanduser(text)
    if key in NAMED:
        return os.path.exists(path)
    return key in MADE or (("." in text or os.sep in text) and os.path.isfile(path))
