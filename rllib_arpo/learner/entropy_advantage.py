"""Applies the entropy-aware advantage to the columns of a pass (`core/entropy_advantage.py` has the formula)."""

from __future__ import annotations

from typing import Any

from rllib_arpo.core.columns import A_NEG, A_POS, BEHAVIOR_ENTROPIES, ENTROPY_STATISTICS
from rllib_arpo.core.entropy_advantage import entropy_factor


def multiply_by_entropy(batch: dict[str, Any], coeff: float) -> dict[str, Any]:
    """The batch with A_POS and A_NEG, [K], multiplied by each token's factor.

    Args:
        batch: the columns of a pass with BEHAVIOR_ENTROPIES, and ENTROPY_STATISTICS of the whole minibatch.
        coeff: the paper's a.
    """
    factor = entropy_factor(batch[BEHAVIOR_ENTROPIES].to(batch[A_POS].dtype), batch[ENTROPY_STATISTICS], coeff)
    return {**batch, A_POS: batch[A_POS] * factor, A_NEG: batch[A_NEG] * factor}
