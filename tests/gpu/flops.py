"""The number of floating point operations of a forward and backward pass, and how many a machine makes a second."""

from collections.abc import Sequence

import torch

from release.benchmarks.common.bench import timed
from rllib_arpo.core.packing import PackedTree


def model_flops(model: torch.nn.Module, packed: Sequence[PackedTree]) -> float:
    """FLOPs that forward and backward of packed trees take at least.

        6 (B T + V D K) + 12 layers heads head_dim P

    with B the parameters of all matrices that a token is multiplied with but the head's, T the packed tokens, V D the
    head's parameters, K the loss tokens, and P the (query, key) pairs of the tree's attention: the sum of every token's
    depth, itself included. In a mixture a token is multiplied with the router and with as many experts as it is sent
    to. A product of n parameters with a token is 2 n FLOPs forward and 4 n backward; a pair costs 2 head_dim for its
    score and as much for its value, forward, and twice that backward. What our kernels compute again in the backward
    pass (logits, attention) does not count.
    """
    head = model.get_output_embeddings()
    config, ends = model.config, {id(model.get_input_embeddings().weight), id(head.weight)}
    matrices = [weight for weight in model.parameters() if weight.dim() > 1 and id(weight) not in ends]
    # A layer's experts are one tensor, the first dimension of which counts them.
    body = sum(w.numel() if w.dim() == 2 else w[0].numel() * config.num_experts_per_tok for w in matrices)
    num_tokens = sum(tree.num_tokens for tree in packed)
    num_loss_tokens = sum(tree.num_loss_tokens for tree in packed)
    pairs = sum(int((tree.position_ids + 1).sum()) for tree in packed)
    attention = 12 * config.num_hidden_layers * config.num_attention_heads * config.head_dim * pairs
    return 6.0 * (body * num_tokens + head.weight.numel() * num_loss_tokens) + attention


def matmul_peaks(dtype: torch.dtype, sizes: Sequence[int], repeats: int = 3, device: str = "cpu") -> dict[int, float]:
    """n -> FLOPs per second of an [n, n] by [n, n] product: the best of some repeats after a first one."""
    peaks = {}
    for size in sizes:
        left, right = torch.randn(2, size, size, device=device).to(dtype)
        product = torch.empty(size, size, dtype=dtype, device=device)
        seconds = [timed(torch.mm, left, right, out=product)[0] for _ in range(repeats + 1)]
        peaks[size] = 2.0 * size**3 / min(seconds[1:])
    return peaks
