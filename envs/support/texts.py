"""Small functions of texts."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping
from typing import Any


def valid_unicode(text: str) -> str:
    """`text` with each unpaired half of a surrogate pair replaced (such as half an emoji at the end of a snippet)."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def seed_of_name(name: str) -> int:
    """A seed that depends on the name alone, in every process."""
    return zlib.crc32(name.encode("utf-8", "replace"))


def first_line(error: BaseException) -> str:
    """The first line of an exception's message that is not blank, without its full stop; its type if there is none."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__).rstrip(".")


def mapped(value: Any, change: Callable[[str], str]) -> Any:
    """A JSON value (with tuples or lists) with all its texts changed, those of its keys too."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {change(key): mapped(inner, change) for key, inner in value.items()}
    return [mapped(inner, change) for inner in value] if isinstance(value, list | tuple) else value
