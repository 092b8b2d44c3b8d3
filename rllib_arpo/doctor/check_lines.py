"""Checks and their text: a line each, with a mark, a name, the findings and, where the check fails, advice."""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum


class Mark(StrEnum):
    """The outcome of a check."""

    OK = "ok"
    WARNING = "warning"  # something does not work that only some runs need
    MISSING = "missing"  # training does not work


@dataclass(frozen=True, slots=True)
class Check:
    """One line of the report; `advice` is a sentence, empty if there is nothing to do."""

    mark: Mark
    name: str
    found: str
    advice: str = ""


def report(checks: Sequence[Check], width: int | None = None) -> str:
    """The lines of `checks`; the text of those that are longer than `width` continues below its own column.

    Args:
        width: columns of the terminal; None wraps nothing.
    """
    name_width = max((len(check.name) for check in checks), default=0)
    return "\n".join(_line(check, name_width, width) for check in checks)


def exit_status(checks: Sequence[Check]) -> int:
    """1 if training does not work, otherwise 0."""
    return int(any(check.mark is Mark.MISSING for check in checks))


def size(num_bytes: float) -> str:
    """A number of bytes for people; GB are 10^9 bytes."""
    return f"{num_bytes / 1e9:.1f} GB" if num_bytes >= 1e8 else f"{num_bytes / 1e6:.1f} MB"


def _line(check: Check, name_width: int, width: int | None) -> str:
    head = f"{check.mark:<7}  {check.name:<{name_width}}  "
    text = f"{check.found}. {check.advice}" if check.advice else check.found
    if width is None:
        return head + text
    # Narrow terminals break lines themselves.
    return textwrap.fill(
        text,
        max(width, len(head) + 40),
        initial_indent=head,
        subsequent_indent=" " * len(head),
        break_long_words=False,
        break_on_hyphens=False,
    )
