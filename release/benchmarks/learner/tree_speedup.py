"""Time and gradients of our forward and backward against the same rollouts without sharing, packed and padded."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from release.benchmarks.common.bench import SMOLLM2, SMOLLM2_FIFTH, Bench, alternate, median, num_cores, rounded, timed
from release.benchmarks.learner.flops import model_flops
from release.benchmarks.learner.rollouts import Rollouts, make_rollouts
from release.benchmarks.learner.sides import (
    MAX_TOKENS_PER_PASS,
    SIDES,
    LearnerSide,
    PaddedSide,
    Sides,
    synchronized,
    take_gradients,
    zero_gradients,
)
from release.benchmarks.learner.tree_workload import make_question

GRADIENTS = "grad_rel_error"
#: Unique tokens of the rollouts with which each side is warmed up.
WARM_UP_TOKENS = 128
#: In which all sides but those of `mfu_bf16` compute, so that their gradients can be compared.
DTYPE = "float32"


def model_for(bench: Bench) -> str:
    """The full run measures SmolLM2, the quick one a Llama of the same widths with a fifth of the work per token."""
    return bench.pick(full=SMOLLM2, quick=SMOLLM2_FIFTH, tiny=SMOLLM2_FIFTH)


def rollouts_for(bench: Bench, ratio: float, *, full: int = 2048, quick: int = 2048, tiny: int = 128) -> Rollouts:
    return make_rollouts([make_question(ratio, bench.pick(full=full, quick=quick, tiny=tiny))])


def seconds_of(side: LearnerSide | PaddedSide) -> float:
    """Of one forward and backward, from no gradients to all gradients."""
    zero_gradients(side.model)
    seconds, _ = timed(synchronized(side, side.model.device))
    zero_gradients(side.model)
    return seconds


def side_names(bench: Bench, *names: str) -> list[str]:
    """`names`, and in the full run beside "padded" the padded side that needs no logits of the prompt."""
    return [*names, "padded_without_prompt_logits"] if bench.size == "full" and "padded" in names else list(names)


def speedup(bench: Bench, ratio: float) -> dict[str, Any]:
    """`speedup_packed_R` and `speedup_padded_R`: seconds without sharing / our seconds, the median of the pairs."""
    name = model_for(bench)
    # The short runs are repeated more often: at ratio 1 it is about some percent. Padding costs the most time.
    num_pairs = bench.pick(full=7, quick=7, tiny=2) if ratio == 1 else bench.pick(full=5, quick=5, tiny=1)
    repeats = {"packed": num_pairs, "padded": bench.pick(full=3, quick=2, tiny=1)}
    sides, rollouts = Sides(bench.model(name)), rollouts_for(bench, ratio)
    ours = SIDES["ours"](sides, rollouts)
    shared = {
        **rollouts.sizes(),
        "model": bench.model_name(name),
        "dtype": DTYPE,
        "tokens_per_pass": MAX_TOKENS_PER_PASS,
        "cores": num_cores(),
        "threads": torch.get_num_threads(),
    }
    results: dict[str, Any] = {}
    for side in ("packed", "padded"):
        others = {name: SIDES[name](sides, rollouts) for name in side_names(bench, side)}
        # The turn that does not count has the whole workload: in a process's first passes each new page of memory is a
        # fault, which slows our one pass by a fifth and the several passes of the other sides by less.
        seconds = alternate(
            {name: partial(_repeat, one) for name, one in {"ours": ours, **others}.items()}, repeats[side]
        )
        ratios = {name: [b / a for a, b in zip(seconds["ours"], seconds[name], strict=True)] for name in others}
        key = f"speedup_{side}_{ratio:.1f}"
        results[key] = median(ratios[side])
        results[f"{key}_detail"] = {
            "sides": ["ours_s", f"{side}_s"],
            **{f"{name}_s": rounded(values) for name, values in seconds.items()},
            **{f"{name}_ratios": rounded(values) for name, values in ratios.items()},
            "repeats": repeats[side],
            "our_unique_tokens_per_s": round(rollouts.num_unique / median(seconds["ours"]), 1),
            **shared,
        }
    results[f"speedup_packed_{ratio:.1f}_detail"] |= {
        "fraction_of_ideal": round(results[f"speedup_packed_{ratio:.1f}"] * rollouts.num_unique / rollouts.num_flat, 4),
        "model_flop_ratio": round(_flop_ratio(ours.model, rollouts), 4),
    }
    return results


def _flop_ratio(model: torch.nn.Module, rollouts: Rollouts) -> float:
    """Without sharing / ours: what a side that computes at the same speed can gain."""
    return model_flops(model, [path.packed for path in rollouts.paths]) / model_flops(model, rollouts.trees)


def _repeat(side: LearnerSide | PaddedSide, repeat: int) -> float:
    return seconds_of(side)


def gradients(bench: Bench) -> dict[str, Any]:
    """`grad_rel_error`: the norm of the difference between our gradient and the padded one, over the norm of it."""
    name = model_for(bench)
    sides, rollouts = Sides(bench.model(name)), rollouts_for(bench, 2.5, full=1024, quick=512)
    found = {}
    for side in ("ours", "packed", "padded"):
        runnable = SIDES[side](sides, rollouts)
        zero_gradients(runnable.model)
        runnable()
        found[side] = take_gradients(runnable.model)
    ours, padded = found["ours"], found["padded"]
    worst, error = max(
        ((name, relative_error({name: ours[name]}, {name: padded[name]})) for name in padded), key=lambda pair: pair[1]
    )
    detail = {
        "sides": ["our_norm", "padded_norm"],
        "our_norm": _norm(ours),
        "packed_norm": _norm(found["packed"]),
        "padded_norm": _norm(padded),
        "ours_to_packed": relative_error(ours, found["packed"]),
        "packed_to_padded": relative_error(found["packed"], padded),
        "worst_parameter": worst,
        "worst_parameter_error": error,
        **rollouts.sizes(),
        "model": bench.model_name(name),
        "dtype": DTYPE,
        "repeats": 1,
    }
    return {GRADIENTS: relative_error(ours, padded), f"{GRADIENTS}_detail": detail}


def relative_error(actual: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> float:
    """||actual - expected|| / ||expected||, all parameters together."""
    difference = {name: actual[name].double() - tensor.double() for name, tensor in expected.items()}
    return _norm(difference) / _norm(expected)


def _norm(tensors: dict[str, torch.Tensor]) -> float:
    return sum(tensor.double().square().sum().item() for tensor in tensors.values()) ** 0.5
