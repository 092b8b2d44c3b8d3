"""The figures of a part, each a row with its target and its outcome, on the disk as soon as it is known."""

from __future__ import annotations

import contextlib
import json
import time
import traceback
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any


class Outcome(StrEnum):
    """What became of a figure, and of a part.

    A figure is `MEASURED` if it has no target, or one that this run does not judge. A part has `FAILED` if a figure
    has, or if its process did not end by itself; it has `NOT_RUN` if all its figures have.
    """

    PASSED = "passed"
    FAILED = "failed"
    MEASURED = "measured"
    NOT_RUN = "not run"


class NotRunError(Exception):
    """A part, or one of its figures, cannot be measured on this machine; the message says what is missing."""


@dataclass(frozen=True, slots=True)
class Row:
    """A figure.

    Attributes:
        value: None if there is none.
        target: like ">= 0.95"; empty: none.
        reason: why it was not run, or why it failed.
        seconds: since the row before.
        detail: raw measurements, sizes; for the file alone.
    """

    part: str
    name: str
    outcome: Outcome
    value: float | str | None = None
    unit: str = ""
    target: str = ""
    reason: str = ""
    seconds: float = 0.0
    detail: Mapping[str, Any] = field(default_factory=dict)


class Report:
    """Takes the figures of one part.

    Args:
        file: gets a line of JSON for each row, so that a part that is killed keeps what it has measured.
        judges_speed: False: targets of speed are shown and not judged.
    """

    def __init__(self, part: str, file: Path, *, judges_speed: bool):
        self._part, self._file, self._judges_speed = part, file, judges_speed
        self._last = time.monotonic()

    def add(
        self,
        name: str,
        value: float | str,
        unit: str = "",
        *,
        at_least: float | None = None,
        at_most: float | None = None,
        is_speed: bool = False,
        detail: Mapping[str, Any] | None = None,
    ) -> None:
        """A figure that was measured; it fails if it misses its target, as NaN does.

        Args:
            at_least, at_most: the target, one of them at most.
            is_speed: whether the target is about speed, which says nothing about a tiny model on a CPU.
        """
        target, reached = "", True
        if at_least is not None:
            target, reached = f">= {at_least:g}", value >= at_least
        elif at_most is not None:
            target, reached = f"<= {at_most:g}", value <= at_most
        judged = bool(target) and (self._judges_speed or not is_speed)
        outcome = Outcome.MEASURED if not judged else Outcome.PASSED if reached else Outcome.FAILED
        self._write(Row(self._part, name, outcome, value, unit, target, detail=detail or {}))

    def fail(self, name: str, reason: str) -> None:
        self._write(Row(self._part, name, Outcome.FAILED, reason=reason))

    def skip(self, name: str, reason: str) -> None:
        self._write(Row(self._part, name, Outcome.NOT_RUN, reason=reason))

    @contextlib.contextmanager
    def attempt(self, name: str) -> Iterator[None]:
        """What the block raises is a row of this name, and the part goes on."""
        try:
            yield
        except NotRunError as reason:
            self.skip(name, str(reason))
        except Exception as error:
            traceback.print_exc()
            self.fail(name, one_line(error))

    def _write(self, row: Row) -> None:
        now = time.monotonic()
        line = asdict(row) | {"seconds": round(now - self._last, 2)}
        self._last = now
        with self._file.open("a") as file:
            file.write(json.dumps(line) + "\n")


def one_line(error: BaseException) -> str:
    text = str(error).strip()
    return f"{type(error).__name__}: {text.splitlines()[0]}" if text else type(error).__name__
