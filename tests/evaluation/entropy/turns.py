"""Turns and questions of a record by hand."""

from collections.abc import Iterable, Sequence
from typing import Any

from rllib_arpo.record.read import Question, Row, Trajectory


def turn(number: int, sample: int, depth: int, entropies: Sequence[float], tool: str | None = None) -> Row:
    """A turn with these entropies; after the first one, by default behind the python tool."""
    after = tool or ("python" if depth else None)
    return {
        "number": number, "agent_id": str(sample), "depth": depth, "after_tool": after, "entropies": list(entropies),
    }  # fmt: skip


def questions(turns: Iterable[Row], unfinished: Iterable[tuple[int, int]] = ()) -> list[Question]:
    """The questions that have these turns; of the samples (question, sample) in `unfinished` none counts."""
    cut = set(unfinished)
    own: dict[tuple[int, int], list[Row]] = {sample: [] for sample in cut}
    for row in turns:
        own.setdefault((row["number"], int(row["agent_id"])), []).append(row)
    numbers = sorted({number for number, _ in own})
    return [Question({}, tuple(_trajectory(sample, own, cut) for sample in sorted(own) if sample[0] == n), {})
            for n in numbers]  # fmt: skip


def _trajectory(sample: tuple[int, int], own: dict[tuple[int, int], list[Row]], cut: set[tuple[int, int]]) -> Any:
    rows = sorted(own[sample], key=lambda row: row["depth"])
    return Trajectory({"agent_id": str(sample[1]), "counts": sample not in cut}, tuple(rows))
