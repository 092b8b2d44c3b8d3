"""Keeps measurements of the last questions, which give the next ones their baseline of dH and tau (docs/design.md)."""

import itertools
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, TypeVar

import numpy as np

from rllib_arpo.core.figures import examined_nodes
from rllib_arpo.core.tree import QuestionTree

Key = TypeVar("Key")


@dataclass(frozen=True, slots=True)
class EarlierQuestion:
    """The measurements of one question.

    Attributes:
        levels: tool -> the mean entropy of the window after each of its responses, nats per token.
        rises: dH at each response of all tools.
        depths: how many turns are above each of these responses.
    """

    levels: Mapping[str, Sequence[float]]
    rises: Sequence[float] = ()
    depths: Sequence[int] = ()

    @classmethod
    def of(cls, tree: QuestionTree, entropy_window: int) -> "EarlierQuestion":
        """Measures a tree at the tool responses on trajectories from the prompt.

        Args:
            entropy_window: as in `examined_nodes`.
        """
        nodes = [node for node in examined_nodes(tree, entropy_window) if node.from_prompt]
        levels = _joined((node.tool, node.entropy) for node in nodes)
        return cls(levels, [node.decision.delta for node in nodes], [node.depth for node in nodes])


@dataclass(frozen=True, slots=True)
class RolloutReference:
    """Measurements of earlier questions that the next ones use; empty until the first questions of a run have ended.

    Levels are in nats per token, whatever the normalization of dH: windows differ in length (`running_delta`).

    Attributes:
        by_tool: tool -> the mean level after its responses.
        after_tool: the mean level over the responses of all tools; None without responses.
        rise: the dH that a given share of the responses exceeded; None without a share or without responses.
        rises_at: depth -> dH at the responses there; empty unless requested.
    """

    by_tool: Mapping[str, float] = field(default_factory=dict)
    after_tool: float | None = None
    rise: float | None = None
    rises_at: Mapping[int, Sequence[float]] = field(default_factory=dict)


#: The reference at the start of a run.
NO_HISTORY = RolloutReference()


class RolloutHistory:
    """The measurements of the last questions, in their order.

    The driver keeps them and sends every env runner the same `RolloutReference` with the questions of a batch,
    whichever env runner sampled the earlier questions.
    """

    def __init__(self, num_questions: int):
        """Remembers the last `num_questions` questions."""
        self._questions: deque[EarlierQuestion] = deque(maxlen=int(num_questions))  # deque refuses numpy's integers.

    def extend(self, questions: Iterable[EarlierQuestion]) -> None:
        self._questions.extend(questions)

    def reference(self, share: float | None = None, *, by_depth: bool = False) -> RolloutReference:
        """The reference for the next questions; a window counts once, however many tokens it has.

        Args:
            share: the share of responses that exceed `RolloutReference.rise`, in (0, 1); None: `rise` is None.
            by_depth: whether to fill in `RolloutReference.rises_at`.
        """
        questions = self._questions
        levels = _joined((tool, level) for one in questions for tool, own in one.levels.items() for level in own)
        if not levels:
            return NO_HISTORY
        rises = [rise for question in questions for rise in question.rises]
        depths = [depth for question in questions for depth in question.depths]
        return RolloutReference(
            by_tool={tool: float(np.mean(values)) for tool, values in levels.items()},
            after_tool=float(np.mean(list(itertools.chain(*levels.values())))),
            rise=None if share is None else float(np.quantile(rises, 1.0 - share)),
            rises_at=_joined(zip(depths, rises, strict=True)) if by_depth else {},
        )

    def get_state(self) -> list[dict[str, Any]]:
        """Plain values for `set_state`, the oldest question first."""
        return [asdict(question) for question in self._questions]

    def set_state(self, state: Sequence[Mapping[str, Any]]) -> None:
        self._questions.clear()
        self.extend(EarlierQuestion(**question) for question in state)


def _joined(pairs: Iterable[tuple[Key, float]]) -> dict[Key, list[float]]:
    """Key -> its values, in their order."""
    joined: dict[Key, list[float]] = {}
    for key, value in pairs:
        joined.setdefault(key, []).append(float(value))
    return joined
