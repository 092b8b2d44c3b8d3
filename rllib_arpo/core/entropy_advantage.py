"""AEPO's entropy-aware advantage (arXiv 2510.14545): tokens of which the policy was unsure count more.

`A_t = A max(0, 1 + a z(H_t))`, where H_t is the entropy of the distribution from which token t was sampled, and z
normalises over the unique generated tokens of the optimizer minibatch, including those of questions without a signal.
K: tokens.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rllib_arpo.core.advantages import STD_EPSILON, mean_and_std
from rllib_arpo.core.tree import QuestionTree, TreeLayout, Turn

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True, slots=True)
class EntropyStatistics:
    """Mean and standard deviation (ddof = 1), in nats, of the token entropies of a minibatch over all learners."""

    mean: float
    std: float


def entropy_factor(entropies: Tensor, statistics: EntropyStatistics, coeff: float) -> Tensor:
    """The factor on a token's advantage: `max(0, 1 + coeff * (H - mean) / (std + 1e-6))`, [K], >= 0.

    The paper has no floor; without it, the update would push a token of very low entropy away from what was good. The
    factor does not depend on the leaf, so a shared token's `a_pos` and `a_neg` are multiplied alike.

    Args:
        entropies: [K] nats, without gradient.
        statistics: of the minibatch; equal entropies have std 0 and the factor 1.
        coeff: the paper's a; 0.2 in the authors' code.
    """
    return (1.0 + coeff * (entropies - statistics.mean) / (statistics.std + STD_EPSILON)).clamp(min=0.0)


def turn_entropies(tree: QuestionTree, turn: Turn) -> np.ndarray:
    """The entropies of all tokens of a turn, [n] float32 nats.

    Raises:
        ValueError: the turn has fewer entropies than tokens.
    """
    if len(turn.entropies) != len(turn.token_ids):
        raise ValueError(
            f"question {tree.question_id}: a turn of {len(turn.token_ids)} tokens has {len(turn.entropies)} entropies; "
            f"entropy_advantage_coeff needs them all, record_entropies='all'"
        )
    return turn.entropies


def unique_entropies(tree: QuestionTree, layout: TreeLayout) -> np.ndarray:
    """The entropies of the generated tokens that a counted trajectory passes, each token once, [K] float64 nats.

    Raises:
        ValueError: a turn has fewer entropies than tokens.
    """
    return np.concatenate([np.zeros(0), *(turn_entropies(tree, tree.turn_of(node)) for node in layout.nodes)])


def entropy_statistics(entropies: Sequence[np.ndarray]) -> EntropyStatistics:
    """The statistics of several questions' entropies, [K] each; a single token and equal entropies have deviation 0.

    Without a token both numbers are 0; there is nothing to multiply then.
    """
    return EntropyStatistics(*mean_and_std(np.concatenate([np.zeros(0), *entropies])))
