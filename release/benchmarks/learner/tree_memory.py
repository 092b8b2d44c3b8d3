"""Peak memory of our forward and backward against a padded batch, and of the LM head against full logits."""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import os
import re
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from release.benchmarks.common.bench import Bench
from release.benchmarks.learner.rollouts import Rollouts, make_rollouts
from release.benchmarks.learner.sides import Sides
from release.benchmarks.learner.tree_speedup import model_for, rollouts_for, workload
from release.benchmarks.learner.tree_workload import make_question
from rllib_arpo.policy.lm_head import chunked_log_probs

#: Hidden size and words of SmolLM2-135M.
HEAD_SHAPE = (576, 49152)
#: Unique tokens of the rollouts with which each side is warmed up.
WARM_UP_TOKENS = 128
#: Larger than any batch here: forward and backward of everything at once.
ONE_PASS = 1 << 20
#: glibc gives blocks above this size back to the system when they are freed, so that the resident memory is what is in
#: use. By default it raises the limit to 32 MiB as it goes.
_GLIBC = {"MALLOC_MMAP_THRESHOLD_": str(1 << 20), "MALLOC_TRIM_THRESHOLD_": str(1 << 20)}


def in_fresh_process(function: Callable, *args: Any) -> Any:
    """The result of `function(*args)` in a new process, in which nothing else was freed before."""
    context = multiprocessing.get_context("spawn")
    with patch.dict(os.environ, _GLIBC), ProcessPoolExecutor(1, context) as pool:
        return pool.submit(function, *args).result()


def peak_bytes(function: Callable[[], Any]) -> int:
    """By how much the resident memory of this process rose at most while `function` ran (Linux only)."""
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # Sets the peak to what is resident now.
    before = _kib("VmRSS")
    function()
    return 1024 * (_kib("VmHWM") - before)


def _kib(field: str) -> int:
    [value] = re.findall(rf"{field}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(value)


def memory(bench: Bench, sharing: float) -> dict[str, Any]:
    """`memory_padded_R`: peak memory above the loaded model, gradients included, ours / padded, all in one pass."""
    rollouts = rollouts_for(bench, sharing, full=1024, quick=1024)
    folder = bench.model(model_for(bench))
    peaks = {
        f"{side}_bytes": in_fresh_process(side_peak, side, folder, rollouts, sharing) for side in ("ours", "padded")
    }
    key = f"memory_padded_{sharing:.1f}"
    detail = {"sides": list(peaks), **peaks, **workload(bench, rollouts)}
    return {key: peaks["ours_bytes"] / peaks["padded_bytes"], f"{key}_detail": detail}


def side_peak(name: str, folder: str, rollouts: Rollouts, sharing: float) -> int:
    """Bytes that one side needs above its loaded model at its peak, gradients included."""
    sides = Sides(folder, ONE_PASS)
    warm_up = sides.make(name, make_rollouts([make_question(sharing, WARM_UP_TOKENS)]))
    warm_up()
    warm_up.model.zero_grad(set_to_none=True)
    del warm_up
    return peak_bytes(sides.make(name, rollouts))


def head(bench: Bench) -> dict[str, Any]:
    """`head_memory_fraction`: what forward and backward of `chunked_log_probs` add at their peak / the full logits.

    What is added includes the gradients of the hidden states and of the head's weight. The figure is that of the most
    tokens; those of fewer are in the detail.
    """
    num_tokens = bench.pick(full=(1024, 2048, 4096, 8192), quick=(2048, 8192), tiny=(512, 1024))
    shape = bench.pick(full=HEAD_SHAPE, quick=HEAD_SHAPE, tiny=(64, 2048))
    added = {k: in_fresh_process(head_peak, k, *shape) for k in num_tokens}
    logits = {k: 4 * k * shape[1] for k in num_tokens}
    most = num_tokens[-1]
    detail = {
        "sides": ["chunked_bytes", "full_logits_bytes"],
        "chunked_bytes": added[most],
        "full_logits_bytes": logits[most],
        "loss_tokens": most,
        "fraction_by_loss_tokens": {k: round(added[k] / logits[k], 4) for k in num_tokens},
        "model": f"an LM head alone: hidden size {shape[0]}, V = {shape[1]}",
    }
    return {"head_memory_fraction": added[most] / logits[most], "head_memory_fraction_detail": detail}


def head_peak(num_tokens: int, hidden_size: int, num_words: int) -> int:
    """Bytes that forward and backward of our head need above their inputs, at their peak."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(num_tokens, hidden_size, generator=generator).requires_grad_()
    weight = torch.randn(num_words, hidden_size, generator=generator).mul_(0.05).requires_grad_()
    targets = torch.randint(num_words, (num_tokens,), generator=generator)
    _head(hidden[:16], targets[:16], weight)
    hidden.grad = weight.grad = None
    return peak_bytes(lambda: _head(hidden, targets, weight))


def _head(hidden: torch.Tensor, targets: torch.Tensor, weight: torch.Tensor) -> None:
    chunked_log_probs(hidden, targets, weight)[0].sum().backward()
