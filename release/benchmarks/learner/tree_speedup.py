"""Compares time and gradients of our forward and backward with the same rollouts, packed without sharing."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch

from release.benchmarks.common.bench import HYBRID, SMOLLM2, SMOLLM2_FIFTH, Bench, alternate, ratio, timed
from release.benchmarks.learner.rollouts import Rollouts, make_rollouts
from release.benchmarks.learner.sides import LearnerSide, make_side, take_gradients
from release.benchmarks.learner.tree_workload import make_question
from rllib_arpo.tracking.machine import num_cores

#: All sides compute in this dtype, so their gradients can be compared.
DTYPE = "float32"


def model_for(bench: Bench) -> str:
    """The full run measures SmolLM2, the quick one a Llama of the same widths with a fifth of the work per token."""
    return bench.pick(full=SMOLLM2, quick=SMOLLM2_FIFTH, tiny=SMOLLM2_FIFTH)


def rollouts_for(bench: Bench, sharing: float, *, full: int = 2048, quick: int = 2048) -> Rollouts:
    return make_rollouts([make_question(sharing, bench.pick(full=full, quick=quick, tiny=128))])


def workload(bench: Bench, rollouts: Rollouts) -> dict[str, Any]:
    """For a benchmark's detail."""
    return {**rollouts.sizes(), "model": bench.model_name(model_for(bench)), "dtype": DTYPE, "cores": num_cores()}


def seconds_of(side: LearnerSide, _repeat: int = 0) -> float:
    """Seconds of one forward and backward, from no gradients to all gradients."""
    side.model.zero_grad(set_to_none=True)
    seconds, _ = timed(side)
    side.model.zero_grad(set_to_none=True)
    return seconds


def speedup(bench: Bench, sharing: float, name: str = "packed") -> dict[str, Any]:
    """`speedup_packed_R`: seconds without sharing / our seconds, the median of the pairs; "states": of `HYBRID`."""
    # At ratio 1 the difference is a few percent, so these short runs have more repeats.
    repeats = bench.pick(full=7, quick=7, tiny=2) if sharing == 1 else bench.pick(full=5, quick=5, tiny=1)
    model = HYBRID if name == "states" else model_for(bench)
    folder, rollouts = bench.model(model), rollouts_for(bench, sharing)
    # The warm-up has the whole workload: in a process's first passes each new page of memory is a fault, which slows
    # our single pass by a fifth and the other side's several passes by less.
    sides = {f"{name}_s": partial(seconds_of, make_side(name, folder, rollouts)) for name in ("ours", "packed")}
    seconds = alternate(sides, repeats)
    about = workload(bench, rollouts) | {"model": bench.model_name(model)}
    return ratio(f"speedup_{name}_{sharing:.1f}", "packed_s", "ours_s", seconds, **about)


def gradients(bench: Bench) -> dict[str, Any]:
    """`grad_rel_error`: the norm of our gradient minus the packed one, divided by the norm of the packed one."""
    folder, rollouts = bench.model(model_for(bench)), rollouts_for(bench, 2.5, full=1024, quick=512)
    found = {}
    for name in ("ours", "packed"):
        side = make_side(name, folder, rollouts)
        side.model.zero_grad(set_to_none=True)
        side()
        found[name] = take_gradients(side.model)
    norms = {f"{name}_norm": _norm(gradient) for name, gradient in found.items()}
    error = relative_error(found["ours"], found["packed"])
    return {"grad_rel_error": error, "grad_rel_error_detail": norms | workload(bench, rollouts)}


def relative_error(actual: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> float:
    """||actual - expected|| / ||expected|| over all parameters together."""
    difference = {name: actual[name].double() - tensor.double() for name, tensor in expected.items()}
    return _norm(difference) / _norm(expected)


def _norm(tensors: dict[str, torch.Tensor]) -> float:
    return sum(tensor.double().square().sum().item() for tensor in tensors.values()) ** 0.5
