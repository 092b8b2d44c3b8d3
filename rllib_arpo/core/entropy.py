"""Entropy of the next token, and how much it rose after a tool response (ARPO, arXiv 2507.19849, eq. 3 and 4)."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

TOP_K = 10
"""How many tokens the authors' code asks its engine for (`logprobs=10`)."""


def token_entropy(logits: Tensor, temperature: float = 1.0) -> Tensor:
    """Entropy of the sampling distribution over the whole vocabulary (paper eq. 3).

    `H = -sum_v p(v) ln p(v)` with `p = softmax(logits / temperature)`. A logit of -inf is a token that cannot be
    sampled: it adds nothing. Computed in fp32 (in fp64 for fp64 logits); differentiable.

    Args:
        logits: [..., V].
        temperature: the sampling temperature, > 0.

    Returns:
        [...], nats, in [0, ln V].

    Raises:
        ValueError: the temperature is not positive.
    """
    if temperature <= 0.0:
        raise ValueError(f"token_entropy needs a temperature above 0, got {temperature}")
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return exact_entropy(torch.log_softmax(logits / temperature, dim=-1))


def exact_entropy(log_probs: Tensor) -> Tensor:
    """`-sum p ln p` over the whole vocabulary: [..., V] -> [...], nats; differentiable."""
    # 0 * ln 0 is 0 here: a finite stand-in for -inf keeps value and gradient free of NaN.
    log_probs = log_probs.clamp(min=torch.finfo(log_probs.dtype).min)
    return -(log_probs.exp() * log_probs).sum(dim=-1)


def top_k_entropy(log_probs: Tensor) -> Tensor:
    """The authors' variant: `-sum p ln p` over the `TOP_K` likeliest tokens only, which are not renormalised.

    Never above the exact entropy, and blind to a flat tail: [..., V] -> [...], nats.
    """
    return exact_entropy(log_probs.topk(min(TOP_K, log_probs.shape[-1]), dim=-1, sorted=False).values)


#: name -> `(log-probs [..., V] at the sampling temperature) -> [...] nats`.
ENTROPY_ESTIMATORS: dict[str, Callable[[Tensor], Tensor]] = {"exact": exact_entropy, "top_k": top_k_entropy}


def _mean_over_log_vocab(difference: np.ndarray, vocab_size: int) -> float:
    """The mean over the window in units of the largest entropy there is, ln V: in [-1, 1]."""
    return float(difference.sum()) / (len(difference) * math.log(vocab_size))


def _sum_over_vocab(difference: np.ndarray, vocab_size: int) -> float:
    """The paper's words, taken literally: the sum over the window, divided by V."""
    return float(difference.sum()) / vocab_size


#: name -> `(difference[n] in nats, V) -> float`; n >= 1.
ENTROPY_NORMALIZATIONS: dict[str, Callable[[np.ndarray, int], float]] = {
    "log_vocab": _mean_over_log_vocab,
    "vocab": _sum_over_vocab,
}


def entropy_delta(after: np.ndarray, initial: np.ndarray, vocab_size: int, normalization: str = "log_vocab") -> float:
    """`dH = normalize(H_t - H_initial)`, over the tokens that both windows have (paper eq. 4).

    Args:
        after: [a] nats, entropies of the first tokens generated after a tool response.
        initial: [i] nats, entropies of the first tokens of the root trajectory.
        vocab_size: V, the width of the logits, >= 2.
        normalization: a key of `ENTROPY_NORMALIZATIONS`.

    Returns:
        dH; 0.0 where either window is empty, since nothing was seen to rise.

    Raises:
        KeyError: the normalization is unknown.
    """
    normalize = ENTROPY_NORMALIZATIONS[normalization]
    n = min(len(after), len(initial))
    if n == 0:
        return 0.0
    return normalize(np.asarray(after[:n], dtype=np.float64) - np.asarray(initial[:n], dtype=np.float64), vocab_size)
