"""Peak memory of our forward and backward against a padded batch, and of the LM head against full logits."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from release.benchmarks.common.bench import Bench, num_cores
from release.benchmarks.common.fresh_process import in_fresh_process, peak_bytes
from release.benchmarks.learner.rollouts import Rollouts, make_rollouts
from release.benchmarks.learner.sides import SIDES, Sides, zero_gradients
from release.benchmarks.learner.tree_speedup import DTYPE, WARM_UP_TOKENS, model_for, rollouts_for, side_names
from release.benchmarks.learner.tree_workload import make_question
from rllib_arpo.policy.lm_head import chunked_log_probs

HEAD = "head_memory_fraction"
#: Hidden size and words of SmolLM2-135M.
HEAD_SHAPE = (576, 49152)
#: Larger than any batch here: forward and backward of everything at once.
ONE_PASS = 1 << 20


def memory(bench: Bench, ratio: float) -> dict[str, Any]:
    """`memory_padded_R`: peak memory above the loaded model, gradients included, ours / padded, all in one pass."""
    name = model_for(bench)
    rollouts = rollouts_for(bench, ratio, full=1024, quick=1024)
    folder = bench.model(name)
    peaks = {
        side: in_fresh_process(side_peak, side, folder, rollouts, ratio) for side in side_names(bench, "ours", "padded")
    }
    key = f"memory_padded_{ratio:.1f}"
    detail = {
        "sides": ["ours_bytes", "padded_bytes"],
        **{f"{side}_bytes": peak["peak"] for side, peak in peaks.items()},
        "gradient_bytes": peaks["ours"]["gradients"],
        "ratio_without_gradients": round(_above_gradients(peaks["ours"]) / _above_gradients(peaks["padded"]), 4),
        **rollouts.sizes(),
        "model": bench.model_name(name),
        "dtype": DTYPE,
        "cores": num_cores(),
        "repeats": 1,
    }
    return {key: peaks["ours"]["peak"] / peaks["padded"]["peak"], f"{key}_detail": detail}


def _above_gradients(peak: dict[str, int]) -> int:
    return peak["peak"] - peak["gradients"]


def side_peak(name: str, folder: str, rollouts: Rollouts, ratio: float) -> dict[str, int]:
    """Bytes that one side needs above its loaded model at its peak, and those of the gradients among them."""
    sides = Sides(folder, ONE_PASS)
    warm_up = SIDES[name](sides, make_rollouts([make_question(ratio, WARM_UP_TOKENS)]))
    warm_up()
    zero_gradients(warm_up.model)
    del warm_up
    side = SIDES[name](sides, rollouts)
    peak = peak_bytes(side)
    return {"peak": peak, "gradients": sum(p.grad.nbytes for p in side.model.parameters())}


def head(bench: Bench) -> dict[str, Any]:
    """`head_memory_fraction`: what forward and backward of `chunked_log_probs` add at their peak / the full logits.

    What is added includes the gradients of the hidden states and of the head's weight. The figure is that of the most
    tokens; those of fewer are in the detail, as are, for the fewest, the bytes of a head that holds the logits
    (`cross_entropy` of `linear`).
    """
    num_tokens = bench.pick(full=(1024, 2048, 4096, 8192), quick=(2048, 8192), tiny=(512, 1024))
    shape = bench.pick(full=HEAD_SHAPE, quick=HEAD_SHAPE, tiny=(64, 2048))
    added = {k: in_fresh_process(head_peak, "chunked", k, *shape) for k in num_tokens}
    logits = {k: 4 * k * shape[1] for k in num_tokens}
    few, most = num_tokens[0], num_tokens[-1]
    detail = {
        "sides": ["chunked_bytes", "full_logits_bytes"],
        "chunked_bytes": added[most],
        "full_logits_bytes": logits[most],
        "loss_tokens": most,
        "fraction_by_loss_tokens": {k: round(added[k] / logits[k], 4) for k in num_tokens},
        f"plain_head_bytes_at_{few}": in_fresh_process(head_peak, "plain", few, *shape),
        f"chunked_bytes_at_{few}": added[few],
        "weight_gradient_bytes": 4 * shape[0] * shape[1],
        "model": f"an LM head alone: hidden size {shape[0]}, V = {shape[1]}",
        "dtype": DTYPE,
        "cores": num_cores(),
        "repeats": 1,
    }
    return {HEAD: added[most] / logits[most], f"{HEAD}_detail": detail}


def head_peak(name: str, num_tokens: int, hidden_size: int, num_words: int) -> int:
    """Bytes that forward and backward of one head need above their inputs, at their peak."""
    generator = torch.Generator().manual_seed(0)
    hidden = torch.randn(num_tokens, hidden_size, generator=generator).requires_grad_()
    weight = torch.randn(num_words, hidden_size, generator=generator).mul_(0.05).requires_grad_()
    targets = torch.randint(num_words, (num_tokens,), generator=generator)
    run = HEADS[name]
    run(hidden[:16], targets[:16], weight)
    hidden.grad = weight.grad = None
    return peak_bytes(lambda: run(hidden, targets, weight))


def _chunked_head(hidden: torch.Tensor, targets: torch.Tensor, weight: torch.Tensor) -> None:
    chunked_log_probs(hidden, targets, weight)[0].sum().backward()


def _plain_head(hidden: torch.Tensor, targets: torch.Tensor, weight: torch.Tensor) -> None:
    F.cross_entropy(F.linear(hidden, weight), targets, reduction="sum").backward()


HEADS = {"chunked": _chunked_head, "plain": _plain_head}
