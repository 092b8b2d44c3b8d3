"""The arithmetic of the LM head on one chunk of tokens (`lm_head.py`), as it is or compiled.

Eagerly each operation reads and writes the whole array of logits in fp32: 18 times forward, 15 times backward.
Compiled, the logits stay in the type of the products; they are read three times forward (twice without entropies), and
read and replaced once backward.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, wraps
from typing import Any

import torch

#: How many graphs of a function a process may compile. Lengths, entropies, types and temperatures multiply, and torch's
#: own limit of 8 would end the run.
_MAX_GRAPHS = 64


@dataclass(frozen=True, slots=True)
class ChunkFunctions:
    """The two passes over a chunk: `score` and `logit_gradients`, or the same functions compiled."""

    score: Callable[..., tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]]
    logit_gradients: Callable[..., tuple[torch.Tensor, torch.Tensor | None]]


def score(
    hidden: torch.Tensor,
    targets: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    inverse_temperature: float,
    sum_dtype: torch.dtype,
    with_entropy: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """[k, D] hidden states -> log-probs of `targets`, normalisers ln Z, entropies or None; [k] each, in `sum_dtype`."""
    logits = _logits(hidden, weight, bias, inverse_temperature, sum_dtype)
    normaliser = logits.logsumexp(dim=-1)
    logits.sub_(normaliser[:, None])
    log_probs = logits.gather(1, targets[:, None]).squeeze(1)
    entropy = logits.exp().mul_(logits).sum(dim=-1).neg_() if with_entropy else None
    return log_probs, normaliser, entropy


def logit_gradients(
    hidden: torch.Tensor,
    targets: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    inverse_temperature: float,
    normaliser: torch.Tensor,
    grad_log_probs: torch.Tensor,
    of_entropy: tuple[torch.Tensor, torch.Tensor] | None,
    with_bias: bool,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The loss's gradient with respect to the products W h + b.

    Args:
        normaliser, grad_log_probs: [k].
        of_entropy: the entropies and their gradients, [k] each; None if the loss does not use the entropies.
        with_bias: whether the gradient of the bias is asked for.

    Returns:
        [k, V] in the type of `hidden`, and its sum over the tokens, [V] in that of `normaliser`, or None.
    """
    log_softmax = _logits(hidden, weight, bias, inverse_temperature, normaliser.dtype).sub_(normaliser[:, None])
    coefficients = grad_log_probs[:, None]
    grad = log_softmax.exp()  # The probabilities, so far.
    if of_entropy is not None:
        entropy, grad_entropy = of_entropy
        coefficients = log_softmax.add_(entropy[:, None]).mul_(grad_entropy[:, None]).add_(coefficients)
    grad.mul_(coefficients).neg_()
    del log_softmax, coefficients  # Two arrays of logits are held up to here, and one from here on.
    grad = _add_at(grad, targets, grad_log_probs).mul_(inverse_temperature)
    return grad.to(hidden.dtype), grad.sum(dim=0) if with_bias else None


def _logits(
    hidden: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None,
    inverse_temperature: float,
    sum_dtype: torch.dtype,
) -> torch.Tensor:
    """[k, D] -> [k, V] logits at the sampling temperature, a fresh array in `sum_dtype`.

    On CPU W h^T is faster than h W^T: by a third for k = 128, since the large matrix is not repacked for the product.
    But compiled sums are faster along rows.
    """
    if hidden.device.type == "cpu" and not torch.compiler.is_compiling():
        logits = (weight @ hidden.t() if bias is None else torch.addmm(bias[:, None], weight, hidden.t())).t()
    else:
        logits = torch.nn.functional.linear(hidden, weight, bias)
    return logits.to(sum_dtype).mul_(inverse_temperature)


def _add_at(grad: torch.Tensor, targets: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Adds values[k] to grad[k, targets[k]], in place if nothing is compiled."""
    if not torch.compiler.is_compiling():
        return grad.scatter_add_(1, targets[:, None], values[:, None])
    # A scatter would be a kernel of its own, and so would all that follows it.
    words = torch.arange(grad.shape[1], device=grad.device)
    return torch.where(words == targets[:, None], grad + values[:, None], grad)


EAGER = ChunkFunctions(score, logit_gradients)


@cache
def compiled() -> ChunkFunctions:
    """Both functions compiled: once for the first length of a chunk, and once for all others."""
    return ChunkFunctions(_compiled(score), _compiled(logit_gradients))


def _compiled(function: Callable[..., Any]) -> Callable[..., Any]:
    function = torch.compile(function, fullgraph=True)

    @wraps(function)
    def call(*args: Any) -> Any:
        with torch._dynamo.config.patch(recompile_limit=_MAX_GRAPHS):
            return function(*args)

    return call
