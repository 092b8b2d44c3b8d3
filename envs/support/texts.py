"""Small repairs of texts from other sources."""

from __future__ import annotations


def valid_unicode(text: str) -> str:
    """`text` with each unpaired half of a surrogate pair replaced (such as half an emoji at the end of a snippet)."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def first_line(error: BaseException) -> str:
    """The first line of an exception's message that is not blank, without its full stop; its type if there is none."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__).rstrip(".")
