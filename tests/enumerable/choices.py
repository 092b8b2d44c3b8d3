"""Random choices that are replayed from a script, so that every outcome of a random process can be visited."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np


@dataclass(slots=True)
class Choices:
    """Replays `script`; beyond its end the first possible outcome is taken.

    Attributes:
        script: the outcomes of the first choices.
        taken: the outcomes of all choices so far.
        probability: of `taken`.
        alternatives: scripts of the outcomes that were possible and not taken, beyond the end of `script`. A process
            that is run with the script [] and with every alternative of every run has had each outcome exactly once.
    """

    script: Sequence[int] = ()
    taken: list[int] = field(default_factory=list)
    probability: float = 1.0
    alternatives: list[list[int]] = field(default_factory=list)

    def choose(self, probabilities: Sequence[float]) -> int:
        """One of `range(len(probabilities))`. A certain outcome is not a choice and leaves no trace."""
        possible = [i for i, p in enumerate(probabilities) if p > 0.0]
        if len(possible) == 1:
            return possible[0]
        if len(self.taken) < len(self.script):
            outcome = self.script[len(self.taken)]
        else:
            outcome, *others = possible
            self.alternatives += [[*self.taken, other] for other in others]
        self.taken.append(outcome)
        self.probability *= probabilities[outcome]
        return outcome


class UniformDraw:
    """A number drawn from [0, 1) that only comparisons determine step by step: it lies in [low, high)."""

    def __init__(self, choices: Choices):
        self._choices, self._low, self._high = choices, 0.0, 1.0

    def __lt__(self, bound: float) -> bool:
        below = min(max((bound - self._low) / (self._high - self._low), 0.0), 1.0)
        if self._choices.choose([below, 1.0 - below]) == 0:
            self._high = min(self._high, bound)
            return True
        self._low = max(self._low, bound)
        return False

    def __ge__(self, bound: float) -> bool:
        return not self < bound


@dataclass(frozen=True, slots=True)
class ChosenDraws:
    """Stands in for a `np.random.Generator`: what it draws is chosen, with its probability, by `choices`."""

    choices: Choices

    def random(self, size: int | None = None) -> UniformDraw | np.ndarray:
        if size is None:
            return UniformDraw(self.choices)
        return np.array([UniformDraw(self.choices) for _ in range(size)], dtype=object)

    def integers(self, low: int, high: int | None = None) -> int:
        low, high = (0, low) if high is None else (low, high)
        return low + self.choices.choose([1.0 / (high - low)] * (high - low))

    def permutation(self, values: int | Sequence) -> np.ndarray:
        rest = list(range(values)) if isinstance(values, int) else list(values)
        return np.array([rest.pop(self.integers(len(rest))) for _ in range(len(rest))])
