"""Computes log-probs and entropies from hidden states, without ever holding the logits of all tokens.

With z = (W h + b) / T, p = softmax(z), l = ln p, H = -sum_v p_v l_v and target y:

    d l_y / d z_v = [v = y] - p_v          d H / d z_v = -p_v (l_v + H)

Forward and backward go through the tokens in chunks. Between the two, each token's normaliser and entropy are kept, and
the logits of the first chunks, up to `kept_bytes`. A kept chunk takes three matrix products, any other one four, since
the backward pass computes its logits again.

Eager operations read and write a chunk's whole array of logits in fp32: 18 times forward, 15 times backward. Compiled
code leaves the logits in the type of the products; it reads them three times forward (twice without entropies), and
once backward.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, wraps
from typing import Any

import torch

#: How many graphs of a function a process may compile: one for each combination of length, entropies, type and
#: temperature. torch's own limit of 8 would end the run.
_MAX_GRAPHS = 64


@dataclass(frozen=True, slots=True)
class ChunkFunctions:
    """The two passes over a chunk: `score` and `logit_gradients`, or the same functions compiled.

    Both may overwrite the products W h + b, [k, V], that they get.
    """

    score: Callable[..., tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]]
    logit_gradients: Callable[..., tuple[torch.Tensor, torch.Tensor | None]]


def score(
    products: torch.Tensor,
    targets: torch.Tensor,
    inverse_temperature: float,
    sum_dtype: torch.dtype,
    with_entropy: bool,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
    """[k, V] products -> log-probs of `targets`, normalisers ln Z, entropies or None; [k] each, in `sum_dtype`.

    Products in `sum_dtype` become the logarithms of all probabilities, in place.
    """
    logits = products.to(sum_dtype).mul_(inverse_temperature)
    normaliser = logits.logsumexp(dim=-1)
    logits.sub_(normaliser[:, None])
    log_probs = logits.gather(1, targets[:, None]).squeeze(1)
    entropy = logits.exp().mul_(logits).sum(dim=-1).neg_() if with_entropy else None
    return log_probs, normaliser, entropy


def logit_gradients(
    products: torch.Tensor,
    targets: torch.Tensor,
    inverse_temperature: float,
    normaliser: torch.Tensor,
    grad_log_probs: torch.Tensor,
    of_entropy: tuple[torch.Tensor, torch.Tensor] | None,
    with_bias: bool,
    is_log_softmax: bool,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The loss's gradient with respect to the products.

    Args:
        normaliser, grad_log_probs: [k].
        of_entropy: the entropies and their gradients, [k] each; None if the loss does not use the entropies.
        with_bias: whether to return the gradient of the bias.
        is_log_softmax: whether `score` has already replaced the products.

    Returns:
        [k, V] in the type of the products, and its sum over the tokens, [V] in the type of `normaliser`, or None.
    """
    log_softmax = products
    if not is_log_softmax:
        log_softmax = products.to(normaliser.dtype).mul_(inverse_temperature).sub_(normaliser[:, None])
    coefficients = grad_log_probs[:, None]
    grad = log_softmax.exp()  # The probabilities, so far.
    if of_entropy is not None:
        entropy, grad_entropy = of_entropy
        coefficients = log_softmax.add_(entropy[:, None]).mul_(grad_entropy[:, None]).add_(coefficients)
    grad.mul_(coefficients).neg_()
    del log_softmax, coefficients  # Two arrays of logits are held up to here, and one from here on.
    grad = _add_at(grad, targets, grad_log_probs).mul_(inverse_temperature)
    return grad.to(products.dtype), grad.sum(dim=0) if with_bias else None


def _products(
    hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, functions: ChunkFunctions
) -> torch.Tensor:
    """[k, D] -> [k, V].

    On CPU W h^T is faster than h W^T, by a third for k = 128, since the large matrix is not repacked for the product.
    Compiled sums, however, are faster along rows.
    """
    if hidden.device.type == "cpu" and functions is EAGER:
        return (weight @ hidden.t() if bias is None else torch.addmm(bias[:, None], weight, hidden.t())).t()
    return torch.nn.functional.linear(hidden, weight, bias)


def _add_at(grad: torch.Tensor, targets: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """Adds values[k] to grad[k, targets[k]], in place if nothing is compiled."""
    if not torch.compiler.is_compiling():
        return grad.scatter_add_(1, targets[:, None], values[:, None])
    # A scatter would be a kernel of its own, and so would everything after it.
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


#: Device type -> tokens per chunk. A GPU needs larger products than the cache of a CPU holds.
CHUNK_SIZES = {"cpu": 128, "cuda": 2048}
#: At most this much memory holds logits of a pass for its backward pass, if there is room for all activations.
KEPT_BYTES = 2**32


def chunked_log_probs(
    hidden: torch.Tensor,
    targets: torch.Tensor,
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    *,
    temperature: float = 1.0,
    chunk_size: int | None = None,
    kept_bytes: int = KEPT_BYTES,
    with_entropy: bool = True,
    functions: ChunkFunctions = EAGER,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Log-probs of `targets` and entropies of the whole distribution.

    The matrix products run in the autocast dtype if autocast is on, and everything after them in fp32 (fp64 for fp64
    inputs).

    Args:
        hidden: [K, D] hidden states; row k predicts target k.
        targets: [K] int64 token ids.
        weight: [V, D] of the LM head.
        bias: [V] of the LM head.
        temperature: the sampling temperature T > 0.
        chunk_size: tokens per chunk; at most two [chunk_size, V] fp32 arrays are held at a time. None: the device's
            entry in `CHUNK_SIZES`.
        kept_bytes: of logits that are kept for the backward pass.
        with_entropy: False skips the entropies and returns None for them.
        functions: the arithmetic of a chunk, eager or compiled.

    Returns:
        ([K] log-probs, [K] entropies in nats), fp32 (fp64 for fp64 inputs), both differentiable once with respect to
        hidden, weight and bias.
    """
    device_type = hidden.device.type
    chunk_size = CHUNK_SIZES[device_type] if chunk_size is None else chunk_size
    autocast = torch.is_autocast_enabled(device_type)
    dtype = torch.get_autocast_dtype(device_type) if autocast else hidden.dtype
    kept_tokens = kept_bytes // (weight.shape[0] * dtype.itemsize) if torch.is_grad_enabled() else 0
    settings = (1.0 / temperature, chunk_size, kept_tokens, with_entropy, dtype, functions)
    return _ChunkedLogProbs.apply(hidden, targets, weight, bias, *settings)


class _ChunkedLogProbs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        hidden: torch.Tensor,
        targets: torch.Tensor,
        weight: torch.Tensor,
        bias: torch.Tensor | None,
        inverse_temperature: float,
        chunk_size: int,
        kept_tokens: int,
        with_entropy: bool,
        dtype: torch.dtype,
        functions: ChunkFunctions,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        ctx.set_materialize_grads(False)
        ctx.settings = (inverse_temperature, chunk_size, dtype, functions)
        log_probs = hidden.new_empty(len(hidden), dtype=torch.promote_types(hidden.dtype, torch.float32))
        normaliser = torch.empty_like(log_probs)
        entropy = torch.empty_like(log_probs) if with_entropy else None
        head = _cast(weight, bias, dtype)
        ctx.kept = {}  # First token of a chunk -> its products, as `score` has left them.
        with torch.autocast(hidden.device.type, enabled=False):
            for rows in _chunks(len(hidden), chunk_size):
                products = _products(hidden[rows].to(dtype), *head, functions)
                values = functions.score(products, targets[rows], inverse_temperature, log_probs.dtype, with_entropy)
                if rows.stop <= kept_tokens:
                    ctx.kept[rows.start] = products
                del products
                log_probs[rows], normaliser[rows] = values[:2]
                if entropy is not None:
                    entropy[rows] = values[2]
        ctx.save_for_backward(hidden, targets, weight, bias, normaliser, entropy)
        return log_probs, entropy

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(
        ctx: Any, grad_log_probs: torch.Tensor | None, grad_entropy: torch.Tensor | None
    ) -> tuple[torch.Tensor | None, ...]:
        if grad_log_probs is None and grad_entropy is None:
            return (None,) * 10
        hidden, targets, weight, bias, normaliser, entropy = ctx.saved_tensors
        inverse_temperature, chunk_size, dtype, functions = ctx.settings
        grad_log_probs = torch.zeros_like(normaliser) if grad_log_probs is None else grad_log_probs
        sum_dtype = normaliser.dtype
        grad_hidden = torch.empty_like(hidden)
        grad_weight = torch.zeros_like(weight, dtype=sum_dtype) if ctx.needs_input_grad[2] else None
        grad_bias = torch.zeros_like(bias, dtype=sum_dtype) if bias is not None and ctx.needs_input_grad[3] else None
        head = _cast(weight, bias, dtype)
        with torch.autocast(hidden.device.type, enabled=False):
            for rows in _chunks(len(hidden), chunk_size):
                inputs = hidden[rows].to(dtype)
                of_entropy = None if grad_entropy is None else (entropy[rows], grad_entropy[rows])
                products = ctx.kept.pop(rows.start, None)
                is_log_softmax = products is not None and products.dtype == sum_dtype
                grad, of_bias = functions.logit_gradients(
                    _products(inputs, *head, functions) if products is None else products,
                    targets[rows],
                    inverse_temperature,
                    normaliser[rows],
                    grad_log_probs[rows],
                    of_entropy,
                    grad_bias is not None,
                    is_log_softmax,
                )
                del products
                if grad_bias is not None:
                    grad_bias += of_bias
                grad_hidden[rows] = (grad @ head[0]).to(hidden.dtype)
                if grad_weight is not None:
                    _add_outer(grad_weight, grad, inputs)
                del grad
        grad_weight = None if grad_weight is None else grad_weight.to(weight.dtype)
        grad_bias = None if grad_bias is None else grad_bias.to(bias.dtype)
        return grad_hidden, None, grad_weight, grad_bias, *(None,) * 6


def _chunks(length: int, chunk_size: int) -> list[slice]:
    return [slice(start, min(start + chunk_size, length)) for start in range(0, length, chunk_size)]


def _cast(
    weight: torch.Tensor, bias: torch.Tensor | None, dtype: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor | None]:
    # Detached: a frozen head then needs no other compiled function.
    return weight.detach().to(dtype), None if bias is None else bias.detach().to(dtype)


def _add_outer(total: torch.Tensor, left: torch.Tensor, right: torch.Tensor) -> None:
    """total += left^T right, without a temporary if the device can add products to a sum of this type."""
    if left.dtype == total.dtype:
        total.addmm_(left.t(), right)
    elif _adds_products(left.dtype, total.dtype, total.device):
        torch.addmm(total, left.t(), right, out_dtype=total.dtype, out=total)
    else:
        total += left.t() @ right


@cache
def _adds_products(dtype: torch.dtype, sum_dtype: torch.dtype, device: torch.device) -> bool:
    """Whether torch adds products of `dtype` to a sum in `sum_dtype`: newer versions do, on CUDA."""
    total, ones = torch.ones(16, 16, dtype=sum_dtype, device=device), torch.ones(16, 16, dtype=dtype, device=device)
    try:
        torch.addmm(total, ones, ones, out_dtype=sum_dtype, out=total)
    except RuntimeError:
        return False
    return bool((total == 17).all())
