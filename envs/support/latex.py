"""LaTeX parsing that both protocols and data sets need."""

from __future__ import annotations


def closing_brace(text: str, begin: int) -> int | None:
    """The index of the `}` that ends the group whose content begins at `begin`; None if it is not closed.

    `\\{` and `\\}` are characters, not braces.
    """
    depth = 1
    for end in range(begin, len(text)):
        escaped = text[end - 1] == "\\" and text[end - 2] != "\\"
        depth += 0 if escaped else {"{": 1, "}": -1}.get(text[end], 0)
        if depth == 0:
            return end
    return None
