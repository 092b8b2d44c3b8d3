"""Small repairs of texts that come from elsewhere."""

from __future__ import annotations


def valid_unicode(text: str) -> str:
    """`text`, each half of a surrogate pair replaced that stands alone (an emoji that a snippet was cut in)."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def first_line(error: BaseException) -> str:
    """The first line of an exception's message, without its full stop, or its type where it has none."""
    return (next(iter(str(error).splitlines()), "") or type(error).__name__).rstrip(".")
