"""Small functions for texts."""

from __future__ import annotations

import unicodedata
import zlib
from collections.abc import Callable, Mapping
from typing import Any


def valid_unicode(text: str) -> str:
    """`text` with each unpaired half of a surrogate pair replaced (such as half an emoji at the end of a snippet)."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


class _UsualLetters(dict[int, str]):
    """Code of a character -> its usual letters, made at the first use."""

    def __missing__(self, code: int) -> str:
        letter = chr(code)
        kind = unicodedata.decomposition(letter).partition(" ")[0]
        is_own = not letter.isalnum() or kind in ("<super>", "<sub>", "<circle>", "<fraction>")
        self[code] = letter if is_own else unicodedata.normalize("NFKC", letter)
        return self[code]


_USUAL_LETTERS = _UsualLetters()


def usual_letters(text: str) -> str:
    """`text` with one form for letters and digits that have several: wide or narrow, composed or decomposed.

    Raised, lowered and circled ones and fractions stay ("x²" is not "x2"), and so do all other characters.
    """
    if unicodedata.is_normalized("NFKC", text):
        return text
    return unicodedata.normalize("NFC", unicodedata.normalize("NFC", text).translate(_USUAL_LETTERS))


def search_key(text: str) -> str:
    """The key of a query in a cache: blanks, and other forms of the same letters, make no difference."""
    return " ".join(usual_letters(text).split())


def seed_of_name(name: str) -> int:
    """A seed that depends on the name alone, in every process."""
    return zlib.crc32(name.encode("utf-8", "replace"))


def first_line(error: BaseException) -> str:
    """The first line of an exception's message that is not blank, without its full stop; its type if there is none."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__).rstrip(".")


def mapped(value: Any, change: Callable[[str], str]) -> Any:
    """A JSON value (with tuples or lists) with all its texts changed, keys included."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, Mapping):
        return {change(key): mapped(inner, change) for key, inner in value.items()}
    return [mapped(inner, change) for inner in value] if isinstance(value, list | tuple) else value
