"""The chunked head against full logits."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from rllib_arpo.policy.lm_head import KEPT_BYTES, chunked_log_probs


def full_logits(hidden, targets, weight, bias, temperature):
    """The oracle: all logits at once."""
    logits = hidden @ weight.T if bias is None else hidden @ weight.T + bias
    log_softmax = (logits / temperature).log_softmax(-1)
    entropy = -(log_softmax.exp() * log_softmax).sum(-1)
    return log_softmax.gather(1, targets[:, None]).squeeze(1), entropy


def inputs(num_tokens=11, dtype=torch.float64, with_bias=True):
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(num_tokens, 6, generator=generator, dtype=dtype, requires_grad=True)
    weight = torch.randn(17, 6, generator=generator, dtype=dtype, requires_grad=True)
    bias = torch.randn(17, generator=generator, dtype=dtype, requires_grad=True) if with_bias else None
    targets = torch.randint(17, (num_tokens,), generator=generator)
    return hidden, targets, weight, bias


#: Of four tokens in fp64 with 17 words.
FOUR_TOKENS = 4 * 17 * 8


@pytest.mark.parametrize("chunk_size", [1, 4, 11, 256])
@pytest.mark.parametrize("kept_bytes", [0, FOUR_TOKENS, KEPT_BYTES])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
@pytest.mark.parametrize("with_bias", [True, False])
def test_values_and_gradients_equal_full_logits(chunk_size, kept_bytes, temperature, with_bias):
    hidden, targets, weight, bias = inputs(with_bias=with_bias)
    tensors = [tensor for tensor in (hidden, weight, bias) if tensor is not None]
    settings = {"temperature": temperature, "chunk_size": chunk_size, "kept_bytes": kept_bytes}
    got = chunked_log_probs(hidden, targets, weight, bias, **settings)
    want = full_logits(hidden, targets, weight, bias, temperature)
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)
    # A different weight per token and per output, so that no error can cancel.
    coefficients = torch.linspace(-1, 2, 11, dtype=torch.float64)
    for log_prob_factor, entropy_factor in ((1.0, 0.0), (0.0, 1.0), (1.0, -0.3)):
        grads = [
            torch.autograd.grad(
                (coefficients * (log_prob_factor * log_probs + entropy_factor * entropy.square())).sum(),
                tensors,
                retain_graph=True,
            )
            for log_probs, entropy in (got, want)
        ]
        torch.testing.assert_close(*grads, rtol=1e-11, atol=1e-11)


class CountProducts(TorchDispatchMode):
    """Sums the multiplications of matrix products."""

    def __init__(self):
        super().__init__()
        self.multiplications = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        name = function._schema.name
        if name in ("aten::mm", "aten::addmm", "aten::addmm_"):
            left, right = args[-2:]
            self.multiplications += left.shape[0] * left.shape[1] * right.shape[1]
        return function(*args, **(kwargs or {}))


@pytest.mark.parametrize(("kept_bytes", "products"), [(0, 4), (KEPT_BYTES, 3), (FOUR_TOKENS, 4 - 4 / 11)])
def test_products_of_tokens_whose_logits_are_kept(kept_bytes, products):
    """Logits, and the gradients of hidden states and weight; a fourth product computes the logits again."""
    hidden, targets, weight, _ = inputs(with_bias=False)
    with CountProducts() as count:
        log_probs, _ = chunked_log_probs(hidden, targets, weight, chunk_size=2, kept_bytes=kept_bytes)
        log_probs.sum().backward()
    assert count.multiplications == pytest.approx(products * 11 * 17 * 6)
    with torch.no_grad(), CountProducts() as count:
        chunked_log_probs(hidden, targets, weight, kept_bytes=kept_bytes)
    assert count.multiplications == 11 * 17 * 6


def test_autocast_rounds_the_products_only():
    """The softmax stays in fp32 under bf16 autocast: the log-probs are those of the rounded logits to fp32 accuracy."""
    hidden, targets, weight, _ = inputs(dtype=torch.float32, with_bias=False)
    with torch.autocast("cpu", torch.bfloat16):
        log_probs, entropy = chunked_log_probs(hidden, targets, weight, chunk_size=4)
    logits = (hidden.bfloat16() @ weight.bfloat16().T).float()
    want = logits.log_softmax(-1).gather(1, targets[:, None]).squeeze(1)
    torch.testing.assert_close(log_probs, want, rtol=1e-6, atol=1e-6)
    grads = torch.autograd.grad(log_probs.sum() + entropy.sum(), (hidden, weight))
    assert [grad.dtype for grad in grads] == [torch.float32, torch.float32]
    exact = torch.autograd.grad(sum(t.sum() for t in full_logits(hidden, targets, weight, None, 1.0)), (hidden, weight))
    for got, expected in zip(grads, exact, strict=True):
        assert (got - expected).norm() < 0.02 * expected.norm()
