"""The running baseline of dH, computed from the entropies of earlier questions (docs/design.md)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np


@dataclass(frozen=True, slots=True)
class EntropyReference:
    """The levels with which a question's entropies are compared; empty until the first questions of a run have ended.

    Levels are in nats per token, whatever the normalization of dH: windows differ in length (`running_delta`).

    Attributes:
        by_tool: tool -> the mean or a quantile of the levels after its responses.
        after_tool: the mean level over the responses of all tools; None if there are none.
    """

    by_tool: Mapping[str, float] = field(default_factory=dict)
    after_tool: float | None = None


#: The reference at the start of a run.
NO_HISTORY = EntropyReference()


def entropy_reference(
    questions: Iterable[Mapping[str, Sequence[float]]], quantile: float | None = None
) -> EntropyReference:
    """Computes the reference from the levels of some questions; a window counts once, however many tokens it has.

    Args:
        questions: per question: tool -> the mean entropy of the window after each of its responses, nats per token.
        quantile: of the levels after each tool, in [0, 1]; None takes their mean.
    """
    by_tool: dict[str, list[float]] = {}
    for question in questions:
        for tool, values in question.items():
            by_tool.setdefault(tool, []).extend(values)
    levels = {tool: np.array(values) for tool, values in by_tool.items() if values}
    if not levels:
        return NO_HISTORY
    return EntropyReference(
        by_tool={
            tool: float(values.mean() if quantile is None else np.quantile(values, quantile))
            for tool, values in levels.items()
        },
        after_tool=float(np.concatenate(list(levels.values())).mean()),
    )
