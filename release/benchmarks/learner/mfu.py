"""Model FLOPs utilisation: what our forward and backward compute per second over what the machine can."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from release.benchmarks.common.bench import SMOLLM2, Bench, median, num_cores, rounded, timed
from release.benchmarks.learner.flops import model_flops
from release.benchmarks.learner.sides import MAX_TOKENS_PER_PASS, LearnerSide, build_learner, synchronized
from release.benchmarks.learner.tree_speedup import rollouts_for, seconds_of
from rllib_arpo.policy.dtypes import fast_dtype

RATIO = 2.5


def mfu(bench: Bench, dtype: str) -> dict[str, Any]:
    """`mfu_fp32` or `mfu_bf16`: model FLOPs per second of SmolLM2-135M / the peak of square matrix products.

    Forward and backward of the tree's unique tokens, in the learner's dtype `dtype`; see `flops.py`.
    """
    key = {"float32": "mfu_fp32", "bfloat16": "mfu_bf16"}[dtype]
    slow = dtype == "bfloat16" and fast_dtype() != dtype
    tokens, repeats = bench.pick(
        full=(1024, 3) if slow else (2048, 5), quick=(512, 2) if slow else (1024, 3), tiny=(64, 1)
    )
    rollouts = rollouts_for(bench, RATIO, full=tokens, quick=tokens, tiny=tokens)
    learner = build_learner(bench.model(SMOLLM2), dtype)
    side = LearnerSide(learner, rollouts.trees, rollouts.scalars, MAX_TOKENS_PER_PASS)
    flops = model_flops(side.model, rollouts.trees)
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
        "dtype": f"{dtype}, emulated: this CPU has no bf16 instructions" if slow else dtype,
        "cores": num_cores(),
        "threads": torch.get_num_threads(),
        "repeats": repeats,
    }
    return {key: achieved / max(peaks.values()), f"{key}_detail": detail}


def matmul_peaks(dtype: torch.dtype, sizes: Sequence[int], repeats: int = 3, device: str = "cpu") -> dict[int, float]:
    """n -> FLOPs per second of an [n, n] by [n, n] product: the best of some repeats after a first one."""
    peaks = {}
    for size in sizes:
        left, right = torch.randn(2, size, size, device=device).to(dtype)
        product = torch.empty(size, size, dtype=dtype, device=device)
        multiply = synchronized(partial(torch.mm, left, right, out=product), product.device)
        seconds = [timed(multiply)[0] for _ in range(repeats + 1)]
        peaks[size] = 2.0 * size**3 / min(seconds[1:])
    return peaks
