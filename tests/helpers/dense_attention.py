"""Attention over a packed tree, slow and obvious: what the kernels are compared with."""

import torch
from torch import Tensor

#: A prompt of 300 with four branches, one of which forks; then a second tree.
END_OF_SUBTREE = [990] * 300 + [600] * 300 + [690] * 90 + [890] * 100 + [830] * 40 + [890] * 60 + [990] * 100
END_OF_SUBTREE += [1090] * 20 + [1050] * 40 + [1090] * 40


def dense_attention(
    query: Tensor, key: Tensor, value: Tensor, end: Tensor, scaling: float | None = None, window: int | None = None
) -> Tensor:
    """Every pair of tokens, masked: [1, H, T, D], [1, H_kv, T, D] twice -> [1, H, T, D].

    Args:
        end: [T]; token t attends to s iff s <= t < end[s].
        scaling: of the scores; None: 1 / sqrt(D).
        window: each token attends to so many of the nearest ones, itself included; None: to all.
    """
    tokens = torch.arange(len(end), device=end.device)
    t, s = tokens[:, None], tokens[None, :]
    allowed = (s <= t) & (t < end[None, :])
    if window is not None:
        # Of the tokens of its path, those that have fewer than `window` others behind them up to t.
        allowed &= allowed.flip(1).cumsum(1).flip(1) <= window
    repeats = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1)
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    scores = (query @ key.transpose(-1, -2) * scaling).masked_fill(~allowed, -torch.inf)
    return scores.softmax(-1) @ value


def relative_error(got: Tensor, want: Tensor) -> float:
    return ((got.double() - want.double()).norm() / want.double().norm()).item()


def kernel_errors(
    kernel: str, dtype: torch.dtype, device: str, heads: tuple[int, int, int] = (9, 3, 64)
) -> list[float]:
    """Relative errors of a kernel on `END_OF_SUBTREE`, against fp64: of its output, and of the gradients to its inputs.

    Args:
        heads: H, H_kv, D.

    Returns:
        those of output, query, key and value.
    """
    from rllib_arpo.policy.attention.tree import plan_tree

    num_heads, num_groups, size = heads
    end = torch.tensor(END_OF_SUBTREE, device=device)
    generator = torch.Generator(device).manual_seed(0)

    def draw(number: int) -> Tensor:
        return torch.randn(1, number, len(end), size, device=device, generator=generator).to(dtype)

    inputs = [draw(number).requires_grad_() for number in (num_heads, num_groups, num_groups)]
    grad = draw(num_heads)
    exact = [tensor.detach().double().requires_grad_() for tensor in inputs]
    plan = plan_tree(END_OF_SUBTREE, dtype, kernel, device=torch.device(device))
    expected, output = dense_attention(*exact, end), plan.attend(*inputs, None)
    gradients = torch.autograd.grad(output, inputs, grad)
    expected_gradients = torch.autograd.grad(expected, exact, grad.double())
    pairs = zip((output, *gradients), (expected, *expected_gradients), strict=True)
    return [relative_error(got, want) for got, want in pairs]
