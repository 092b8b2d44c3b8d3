"""The entropies after tool responses of the last questions of a run."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any

from rllib_arpo.core.entropy_history import EntropyReference, entropy_reference


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
