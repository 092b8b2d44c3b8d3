"""The brackets in a formula."""

from __future__ import annotations

import re


def depth(text: str) -> int:
    """The depth to which the brackets in `text` are nested."""
    level = deepest = 0
    for c in text:
        level += (c in "([{") - (c in ")]}")
        deepest = max(deepest, level)
    return deepest


def split(text: str, separator: re.Pattern[str]) -> list[str]:
    """`text` cut where `separator` matches outside of all brackets and environments."""
    parts, level, begin, position = [], 0, 0, 0
    while position < len(text):
        if level == 0 and (match := separator.match(text, position)):
            parts.append(text[begin:position])
            begin = position = match.end()
            continue
        opens = text[position] in "([{" or text.startswith("\\begin", position)
        closes = text[position] in ")]}" or text.startswith("\\end", position)
        level += opens - closes
        position += 1
    return [part.strip() for part in [*parts, text[begin:]]]


def closing(text: str, begin: int) -> int | None:
    """The index of the bracket that closes the one before `begin`; None if it is not closed."""
    level = 1
    for position in range(begin, len(text)):
        level += (text[position] in "([{") - (text[position] in ")]}")
        if level == 0:
            return position
    return None


def closes_at_end(text: str) -> bool:
    """Whether the bracket with which `text` begins is closed by its last character."""
    return closing(text, 1) == len(text) - 1
