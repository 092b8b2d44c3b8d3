"""The file of a check: what each part has found, and the table of it."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from release.gpu_parts.report import Outcome

#: Lines of a failed part's output that its entry keeps.
KEPT_LINES = 25


@dataclass
class Results:
    """A check's file, written after every part.

    Attributes:
        size: "full" or "tiny".
        command: that began it.
        parts: name -> its `outcome`, the `reason` if its process failed, the last lines of its `output` then, its
            `seconds`, `device`, `commit` and `rows` (`report.Row`).
    """

    path: Path
    size: str
    command: str
    parts: dict[str, dict[str, Any]]

    @classmethod
    def read(cls, path: Path) -> Results:
        """Raises ValueError: the file has no results of a check."""
        try:
            content = json.loads(path.read_text())
            return cls(path, content["size"], content["command"], content["parts"])
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise ValueError(f"{path} has no results of a check: {type(error).__name__}: {error}.") from error

    @classmethod
    def of_run(cls, path: Path, size: str, command: str) -> Results:
        """The results that a run continues, or begins.

        Raises:
            ValueError: the file is of something else, or of a run of another size.
        """
        if not path.exists():
            return cls(path, size, command, {})
        found = cls.read(path)
        if found.size != size:
            raise ValueError(f"{path} has results of a {found.size} run: name another file for a {size} one.")
        return found

    def put(self, name: str, entry: dict[str, Any]) -> None:
        """Adds a part; it is on the disk when this returns."""
        self.parts[name] = entry
        scratch = self.path.with_name(f"{self.path.name}.part")
        with scratch.open("w") as file:
            json.dump({"size": self.size, "command": self.command, "parts": self.parts}, file, indent=2)
            file.write("\n")
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(self.path)


def part_entry(rows_file: Path, log: Path, status: int | None, seconds: float, limit_s: float) -> dict[str, Any]:
    """What a part's process has left.

    Args:
        status: of its process; None: it took longer than `limit_s`.
    """
    lines = [json.loads(line) for line in rows_file.read_text().splitlines()] if rows_file.exists() else []
    rows = [line for line in lines if "part" in line]
    where: Mapping[str, Any] = next((line for line in lines if "part" not in line), {})
    reason = _reason(status, limit_s)
    output = log.read_text(errors="replace").splitlines()[-KEPT_LINES:] if reason else []
    return {
        "outcome": Outcome.FAILED if reason else part_outcome(row["outcome"] for row in rows),
        "reason": reason,
        "seconds": round(seconds, 1),
        "device": where.get("device"),
        "commit": where.get("commit"),
        "rows": rows,
        "output": output,
    }


def _reason(status: int | None, limit_s: float) -> str:
    if status is None:
        return f"took longer than {limit_s:g} s"
    if status == 0:
        return ""
    return f"was killed by signal {-status}" if status < 0 else f"ended with status {status}"


def part_outcome(outcomes: Iterable[str]) -> Outcome:
    """Of a part whose process ended by itself."""
    found = set(outcomes)
    if Outcome.FAILED in found or not found:
        return Outcome.FAILED
    return Outcome.NOT_RUN if found == {Outcome.NOT_RUN} else Outcome.PASSED


def table(parts: Mapping[str, Mapping[str, Any]]) -> str:
    """A line a figure, then a line a part whose process failed, and the seconds of all."""
    lines = [f"{'part':13s}  {'figure':52s}  {'value':>20s}  {'target':9s}  outcome"]
    for part in parts.values():
        lines += [_line(row) for row in part["rows"]]
    for name, part in parts.items():
        if part["reason"]:
            lines += [f"\n{name} {part['reason']}; the last lines of its output:", *part["output"]]
    places = sorted({f"{part['device']}, commit {part['commit']}" for part in parts.values()})
    seconds = ", ".join(f"{name} {part['seconds']:.0f}" for name, part in parts.items())
    total = sum(part["seconds"] for part in parts.values())
    return "\n".join([*lines, "", *places, f"{total:.0f} seconds: {seconds}"])


def _line(row: Mapping[str, Any]) -> str:
    value, text = row["value"], row["reason"]
    if isinstance(value, str):
        value, text = None, value
    shown = "-" if value is None else f"{value:.4g} {row['unit']}".strip()
    said = f"{row['outcome']}: {text}" if text else row["outcome"]
    return f"{row['part']:13s}  {row['name']:52s}  {shown:>20s}  {row['target']:9s}  {said}"
