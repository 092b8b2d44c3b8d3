"""Turns and samples by hand."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from rllib_arpo.evaluation.entropy.turns import Sample, SampledTurn


def turn(
    number: int, sample: int, round: int, entropies: Sequence[float], tool: str | None = None, **changes
) -> SampledTurn:
    """A turn with these entropies; after the first round, by default behind the python tool."""
    fields = {
        "number": number,
        "question_id": f"q{number}",
        "sample": sample,
        "round": round,
        "tool": tool or ("python" if round else None),
        "read_ids": np.array([1, 2], np.int32),
        "token_ids": np.zeros(len(entropies), np.int32),
        "entropies": np.array(entropies, np.float32),
        "text": "",
        "reward": 0.0,
        "accuracy": 0.0,
        "stop_reason": "answer",
    }
    return SampledTurn(**fields | changes)


def samples(turns: Iterable[SampledTurn]) -> list[Sample]:
    """The samples that have these turns; each ended as its first turn says."""
    found: dict[tuple[int, int], list[SampledTurn]] = {}
    for own in turns:
        found.setdefault((own.number, own.sample), []).append(own)
    return [Sample(number, i, own[0].stop_reason, tuple(own)) for (number, i), own in found.items()]
