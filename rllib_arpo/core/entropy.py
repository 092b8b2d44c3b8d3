"""Computes the entropy of the next token, its rise after a tool response, and advantages that depend on it.

The rise is ARPO's (arXiv 2507.19849, eq. 3 and 4). The advantage is AEPO's (arXiv 2510.14545): tokens of which the
policy was unsure count more, `A_t = A max(0, 1 + a z(H_t))`, where H_t is the entropy of the distribution from which
token t was sampled, and z normalises over the unique generated tokens of the optimizer minibatch, including tokens of
questions without a signal. K: tokens.
"""

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from rllib_arpo.core.advantages import STD_EPSILON, MeanAndStd, mean_and_std
from rllib_arpo.core.tree import QuestionTree, TreeLayout, Turn

#: How many log-probs the authors' code requests from its engine (`logprobs=10`).
TOP_K = 10


def exact_entropy(log_probs: Tensor) -> Tensor:
    """Entropy of the sampling distribution over the whole vocabulary (paper eq. 3): `H = -sum p ln p`.

    A token with log-prob -inf cannot be sampled and adds nothing. The entropy is differentiable.

    Args:
        log_probs: [..., V], normalised, at the sampling temperature.

    Returns:
        [...], nats, in [0, ln V].
    """
    # 0 * ln 0 is 0 here: a finite stand-in for -inf keeps value and gradient free of NaN.
    log_probs = log_probs.clamp(min=torch.finfo(log_probs.dtype).min)
    return -(log_probs.exp() * log_probs).sum(dim=-1)


def top_k_entropy(log_probs: Tensor) -> Tensor:
    """The authors' variant: `-sum p ln p` over the `TOP_K` likeliest tokens only, which are not renormalised.

    It is never above the exact entropy, and ignores a flat tail: [..., V] -> [...], nats.
    """
    return exact_entropy(log_probs.topk(min(TOP_K, log_probs.shape[-1]), dim=-1, sorted=False).values)


#: name -> `(log-probs [..., V] at the sampling temperature) -> [...] nats`.
ENTROPY_ESTIMATORS: dict[str, Callable[[Tensor], Tensor]] = {"exact": exact_entropy, "top_k": top_k_entropy}


def _sum_over_log_vocab(entropies: np.ndarray, vocab_size: int) -> float:
    """The authors' code: the sum over the window in units of the largest entropy of a token, ln V."""
    return float(entropies.sum()) / math.log(vocab_size)


def _mean_over_log_vocab(entropies: np.ndarray, vocab_size: int) -> float:
    """The mean over the window in the same units."""
    return float(entropies.sum()) / (len(entropies) * math.log(vocab_size))


def _sum_over_vocab(entropies: np.ndarray, vocab_size: int) -> float:
    """The paper's words, taken literally: the sum over the window, divided by V."""
    return float(entropies.sum()) / vocab_size


#: name -> `(entropies[n] in nats, V) -> float`; n >= 1. Each is a linear function of the entropies.
ENTROPY_NORMALIZATIONS: dict[str, Callable[[np.ndarray, int], float]] = {
    "sum_log_vocab": _sum_over_log_vocab,
    "mean_log_vocab": _mean_over_log_vocab,
    "vocab": _sum_over_vocab,
}


def entropy_level(entropies: np.ndarray, vocab_size: int, normalization: str) -> float:
    """`normalize(H)`: how unsure the model is over a window, in the units of dH.

    Args:
        entropies: [n] nats, of the first tokens of a turn.
        vocab_size: V, the width of the logits, >= 2.
        normalization: a key of `ENTROPY_NORMALIZATIONS`.

    Returns:
        the level; 0.0 for an empty window.

    Raises:
        KeyError: the normalization is unknown.
    """
    normalize = ENTROPY_NORMALIZATIONS[normalization]
    return normalize(np.asarray(entropies, dtype=np.float64), vocab_size) if len(entropies) else 0.0


def entropy_delta(
    after: np.ndarray, initial: np.ndarray, vocab_size: int, normalization: str = "sum_log_vocab"
) -> float:
    """`dH = normalize(H_t - H_initial)`, over the tokens that both windows have (paper eq. 4).

    Args:
        after: [a] nats, entropies of the first tokens generated after a tool response.
        initial: [i] nats, entropies of the first tokens of the root trajectory.
        vocab_size, normalization: as in `entropy_level`.

    Returns:
        dH; 0.0 if either window is empty.
    """
    n = min(len(after), len(initial))
    difference = np.asarray(after[:n], dtype=np.float64) - np.asarray(initial[:n], dtype=np.float64)
    return entropy_level(difference, vocab_size, normalization)


def running_delta(after: np.ndarray, reference: float, vocab_size: int, normalization: str = "sum_log_vocab") -> float:
    """`dH = normalize(H_t - b)`: the rise above a level b per token.

    A sum over a window of n tokens is thus compared with n b, and not with sums over longer or shorter windows.

    Args:
        after: [a] nats, entropies of the first tokens generated after a tool response (or of a trajectory).
        reference: b, nats per token (`core.rollout_history.RolloutReference`).
        vocab_size, normalization: as in `entropy_level`.

    Returns:
        dH; 0.0 for an empty window.
    """
    return entropy_level(np.asarray(after, dtype=np.float64) - reference, vocab_size, normalization)


def entropy_factor(entropies: Tensor, statistics: MeanAndStd, coeff: float) -> Tensor:
    """The factor on a token's advantage: `max(0, 1 + coeff * (H - mean) / (std + 1e-6))`, [K], >= 0.

    The paper has no floor, but a negative factor would penalise a good token of very low entropy. The factor does not
    depend on the leaf, so a shared token's `a_pos` and `a_neg` are multiplied by the same number.

    Args:
        entropies: [K] nats, without gradient.
        statistics: over the minibatch's entropies on all learners; equal entropies have std 0 and factor 1.
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
            f"entropy_advantage_coeff needs all of them: set record_entropies='all'"
        )
    return turn.entropies


def unique_entropies(tree: QuestionTree, layout: TreeLayout) -> np.ndarray:
    """The entropies of the generated tokens on counted trajectories, each token once, [K] float64 nats.

    Raises:
        ValueError: a turn has fewer entropies than tokens.
    """
    return np.concatenate([np.zeros(0), *(turn_entropies(tree, tree.turn_of(node)) for node in layout.nodes)])


def entropy_statistics(entropies: Sequence[np.ndarray]) -> MeanAndStd:
    """Mean and deviation of several questions' entropies, [K] each.

    The deviation of a single token or of equal entropies is 0; without tokens both numbers are 0.
    """
    return mean_and_std(np.concatenate([np.zeros(0), *entropies]))
