"""What the sampler makes of the entropies at the beginnings of turns."""

import math
from dataclasses import dataclass

import numpy as np

from rllib_arpo.core.branching import num_initial_rollouts
from rllib_arpo.core.entropy import entropy_delta, entropy_level, running_delta
from rllib_arpo.rollout.settings import RolloutSettings


@dataclass(frozen=True, slots=True)
class EntropyMeasure:
    """Measures entropies, [k] nats each, in the units and against the baseline of the settings; `vocab_size` is V.

    All raise ValueError where the engine's entropies are not finite: later questions would follow them.
    """

    settings: RolloutSettings
    vocab_size: int

    def level(self, entropies: np.ndarray) -> float:
        return _finite(entropy_level(entropies, self.vocab_size, self.settings.entropy_normalization))

    def delta(self, entropies: np.ndarray, tool: str, initial: np.ndarray) -> float:
        """dH at a response of `tool`, before `entropies`; `initial` are those of the root's first tokens."""
        earlier = self.settings.rollout_reference.by_tool.get(tool)
        if self.settings.entropy_baseline == "running" and earlier is not None:
            return self._running_delta(entropies, earlier)
        return _finite(entropy_delta(entropies, initial, self.vocab_size, self.settings.entropy_normalization))

    def num_roots(self, entropies: np.ndarray) -> int:
        """AEPO: the first tokens of the first root determine the number of roots, including itself."""
        after_tool, sensitivity = self.settings.rollout_reference.after_tool, self.settings.pre_monitoring_sensitivity
        assert after_tool is not None  # `monitors_entropy` says so.
        assert sensitivity is not None
        return num_initial_rollouts(self._running_delta(entropies, after_tool), self.settings.num_rollouts, sensitivity)

    def _running_delta(self, entropies: np.ndarray, earlier: float) -> float:
        return _finite(running_delta(entropies, earlier, self.vocab_size, self.settings.entropy_normalization))


def _finite(value: float) -> float:
    if not math.isfinite(value):
        raise ValueError(f"the engine's entropies must be finite, got {value}")
    return value
