"""The running baseline of dH: the entropies after tool responses of earlier questions (docs/design.md)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

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


class EntropyHistory:
    """The levels after tool responses of the last questions, in nats per token, in the order of the questions.

    The driver keeps it and gives every env runner the same `EntropyReference` with the questions of a batch, whichever
    env runner sampled the earlier questions.
    """

    def __init__(self, num_questions: int):
        """Args: `num_questions`: the number of last questions that count."""
        self._questions: deque[dict[str, list[float]]] = deque(maxlen=num_questions)

    def add(self, levels: Mapping[str, Sequence[float]]) -> None:
        """Adds one question: tool -> the levels after each of its responses (`QuestionStats.levels`)."""
        self._questions.append({tool: list(map(float, values)) for tool, values in levels.items()})

    def reference(self, quantile: float | None = None) -> EntropyReference:
        """Args: `quantile`: in [0, 1]; None takes the mean."""
        return entropy_reference(self._questions, quantile)

    def get_state(self) -> list[dict[str, Any]]:
        """Plain values, the oldest question first; `set_state` takes them."""
        return list(self._questions)

    def set_state(self, state: Sequence[Mapping[str, Sequence[float]]]) -> None:
        self._questions.clear()
        for question in state:
            self.add(question)
