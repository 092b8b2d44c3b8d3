"""Model FLOPs utilisation: what our forward and backward compute per second over what the machine can."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from bench import SMOLLM2, Bench, median, num_cores, rounded, timed
from learner_rollouts import Rollouts
from learner_sides import MAX_TOKENS_PER_PASS, LearnerSide, build_learner
from tree_speedup import rollouts_for, seconds_of

from rllib_arpo.models import fast_dtype

RATIO = 2.5


def mfu(bench: Bench, dtype: str) -> dict[str, Any]:
    """`mfu_fp32` or `mfu_bf16`: model FLOPs per second of SmolLM2-135M / the peak of square matrix products.

    Forward and backward of the tree's unique tokens, in the learner's dtype `dtype`; see `model_flops`.
    """
    key = {"float32": "mfu_fp32", "bfloat16": "mfu_bf16"}[dtype]
    slow = dtype == "bfloat16" and fast_dtype() != dtype
    tokens, repeats = ((1024, 3), (512, 2)) if slow else ((2048, 5), (1024, 3))
    rollouts = rollouts_for(bench, RATIO, full=tokens[0], quick=tokens[1], tiny=64)
    repeats = bench.pick(full=repeats, quick=repeats, tiny=1)
    learner = build_learner(bench.model(SMOLLM2), dtype)
    side = LearnerSide(learner, rollouts.trees, rollouts.scalars, MAX_TOKENS_PER_PASS)
    flops = model_flops(side.model, rollouts)
    peaks = matmul_peaks(getattr(torch, dtype), bench.pick(full=(1024, 2048, 4096), quick=(1024, 2048), tiny=(64,)))
    seconds_of(side)
    seconds = [seconds_of(side) for _ in range(repeats)]
    achieved = flops / median(seconds)
    detail = {
        "sides": ["achieved_gflops", "peak_gflops"],
        "achieved_gflops": round(achieved / 1e9, 2),
        "peak_gflops": round(max(peaks.values()) / 1e9, 2),
        "peak_gflops_by_size": {size: round(peak / 1e9, 2) for size, peak in peaks.items()},
        "model_gflop": round(flops / 1e9, 2),
        "seconds": rounded(seconds),
        "unique_tokens_per_s": round(rollouts.num_unique / median(seconds), 2),
        "flat_tokens_per_s": round(rollouts.num_flat / median(seconds), 2),
        **rollouts.sizes(),
        "model": bench.model_name(SMOLLM2),
        "dtype": f"{dtype}, {'emulated: this CPU has no bf16 instructions' if slow else 'in hardware'}",
        "cores": num_cores(),
        "threads": torch.get_num_threads(),
        "repeats": repeats,
    }
    return {key: achieved / max(peaks.values()), f"{key}_detail": detail}


def model_flops(model: torch.nn.Module, rollouts: Rollouts) -> float:
    """FLOPs that forward and backward of the packed trees take at least.

        6 (B T + V D K) + 12 layers heads head_dim P

    with B the parameters of all linear layers but the head, T the unique tokens, V D the head's parameters, K the
    unique loss tokens, and P the (query, key) pairs of the tree's attention: the sum of every token's depth, itself
    included. A product of n parameters with a token is 2 n FLOPs forward and 4 n backward; a pair costs 2 head_dim for
    its score and as much for its value, forward, and twice that backward. What our kernels compute again in the
    backward pass (logits, attention) does not count.
    """
    head = model.get_output_embeddings()
    layers = [module for module in model.modules() if isinstance(module, torch.nn.Linear) and module is not head]
    body = sum(layer.weight.numel() for layer in layers)
    num_tokens = sum(tree.num_tokens for tree in rollouts.trees)
    num_loss_tokens = sum(tree.num_loss_tokens for tree in rollouts.trees)
    pairs = sum(int((tree.position_ids + 1).sum()) for tree in rollouts.trees)
    config = model.config
    attention = 12 * config.num_hidden_layers * config.num_attention_heads * config.head_dim * pairs
    return 6.0 * (body * num_tokens + head.weight.numel() * num_loss_tokens) + attention


def matmul_peaks(dtype: torch.dtype, sizes: Sequence[int], repeats: int = 3) -> dict[int, float]:
    """n -> FLOPs per second of an [n, n] by [n, n] product: the best of some repeats after a first one."""
    peaks = {}
    for size in sizes:
        left, right = torch.randn(2, size, size).to(dtype)
        product = torch.empty(size, size, dtype=dtype)
        seconds = [timed(torch.mm, left, right, out=product)[0] for _ in range(repeats + 1)]
        peaks[size] = 2.0 * size**3 / min(seconds[1:])
    return peaks
