"""Checks and their text: a line each, with a mark, a name, the findings and, where the check fails, advice."""

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


def report(checks: Sequence[Check]) -> str:
    """The lines of `checks`."""
    width = max((len(check.name) for check in checks), default=0)
    return "\n".join(
        f"{check.mark:<7}  {check.name:<{width}}  {f'{check.found}. {check.advice}' if check.advice else check.found}"
        for check in checks
    )


def exit_status(checks: Sequence[Check]) -> int:
    """1 if training does not work, otherwise 0."""
    return int(any(check.mark is Mark.MISSING for check in checks))


def size(num_bytes: float) -> str:
    """A number of bytes for people; GB are 10^9 bytes."""
    return f"{num_bytes / 1e9:.1f} GB" if num_bytes >= 1e8 else f"{num_bytes / 1e6:.1f} MB"
