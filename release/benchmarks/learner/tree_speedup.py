"""Time, gradients and peak memory of our forward and backward against the same rollouts, packed and padded."""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import os
import re
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch

from release.benchmarks.common.bench import SMOLLM2, SMOLLM2_FIFTH, Bench, alternate, ratio, timed
from release.benchmarks.learner.rollouts import Rollouts, make_rollouts
from release.benchmarks.learner.sides import LearnerSide, PaddedSide, make_side, take_gradients
from release.benchmarks.learner.tree_workload import make_question
from rllib_arpo.tracking.machine import num_cores

#: In which all sides compute, so that their gradients can be compared.
DTYPE = "float32"
#: Unique tokens of the rollouts with which each side is warmed up.
WARM_UP_TOKENS = 128
#: Larger than any batch here: forward and backward of everything at once.
ONE_PASS = 1 << 20
#: glibc gives blocks above this size back to the system when they are freed, so that the resident memory is what is in
#: use. By default it raises the limit to 32 MiB as it goes.
_GLIBC = {"MALLOC_MMAP_THRESHOLD_": str(1 << 20), "MALLOC_TRIM_THRESHOLD_": str(1 << 20)}


def model_for(bench: Bench) -> str:
    """The full run measures SmolLM2, the quick one a Llama of the same widths with a fifth of the work per token."""
    return bench.pick(full=SMOLLM2, quick=SMOLLM2_FIFTH, tiny=SMOLLM2_FIFTH)


def rollouts_for(bench: Bench, sharing: float, *, full: int = 2048, quick: int = 2048) -> Rollouts:
    return make_rollouts([make_question(sharing, bench.pick(full=full, quick=quick, tiny=128))])


def workload(bench: Bench, rollouts: Rollouts) -> dict[str, Any]:
    """For a benchmark's detail."""
    return {**rollouts.sizes(), "model": bench.model_name(model_for(bench)), "dtype": DTYPE, "cores": num_cores()}


def seconds_of(side: LearnerSide | PaddedSide, _repeat: int = 0) -> float:
    """Of one forward and backward, from no gradients to all gradients."""
    side.model.zero_grad(set_to_none=True)
    seconds, _ = timed(side)
    side.model.zero_grad(set_to_none=True)
    return seconds


def speedup(bench: Bench, sharing: float) -> dict[str, Any]:
    """`speedup_packed_R` and `speedup_padded_R`: seconds without sharing / our seconds, the median of the pairs."""
    # The short runs are repeated more often: at ratio 1 it is about some percent. Padding costs the most time.
    num_pairs = bench.pick(full=7, quick=7, tiny=2) if sharing == 1 else bench.pick(full=5, quick=5, tiny=1)
    repeats = {"packed": num_pairs, "padded": bench.pick(full=3, quick=2, tiny=1)}
    folder, rollouts = bench.model(model_for(bench)), rollouts_for(bench, sharing)
    ours, results = make_side("ours", folder, rollouts), {}
    for name in ("packed", "padded"):
        # The turn that does not count has the whole workload: in a process's first passes each new page of memory is a
        # fault, which slows our one pass by a fifth and the several passes of the other sides by less.
        one = {"ours_s": partial(seconds_of, ours), f"{name}_s": partial(seconds_of, make_side(name, folder, rollouts))}
        seconds = alternate(one, repeats[name])
        results |= ratio(f"speedup_{name}_{sharing:.1f}", f"{name}_s", "ours_s", seconds, **workload(bench, rollouts))
    return results


def gradients(bench: Bench) -> dict[str, Any]:
    """`grad_rel_error`: the norm of the difference between our gradient and the padded one, over the norm of it."""
    folder, rollouts = bench.model(model_for(bench)), rollouts_for(bench, 2.5, full=1024, quick=512)
    found = {}
    for name in ("ours", "packed", "padded"):
        side = make_side(name, folder, rollouts)
        side.model.zero_grad(set_to_none=True)
        side()
        found[name] = take_gradients(side.model)
    detail = {
        **{f"{name}_norm": _norm(gradient) for name, gradient in found.items()},
        "ours_to_packed": relative_error(found["ours"], found["packed"]),
        **workload(bench, rollouts),
    }
    return {"grad_rel_error": relative_error(found["ours"], found["padded"]), "grad_rel_error_detail": detail}


def compiled(bench: Bench) -> dict[str, Any]:
    """`speedup_compiled`: our seconds / with compiled head and layers; `compiled_grad_error`: of their gradients.

    The detail has the seconds of the first pass, in which everything is compiled, or found in inductor's cache.
    """
    folder, rollouts = bench.model(model_for(bench)), rollouts_for(bench, 2.5, full=1024, quick=512)
    sides = {name: make_side(name, folder, rollouts) for name in ("ours", "compiled")}
    first, found = {}, {}
    for name, side in sides.items():
        side.model.zero_grad(set_to_none=True)
        first[f"first_{name}_s"] = timed(side)[0]
        found[name] = take_gradients(side.model)
    one = {f"{name}_s": partial(seconds_of, side) for name, side in sides.items()}
    seconds, about = alternate(one, bench.pick(full=5, quick=7, tiny=1)), workload(bench, rollouts)
    error = relative_error(found["compiled"], found["ours"])
    return ratio("speedup_compiled", "ours_s", "compiled_s", seconds, **first, **about) | {
        "compiled_grad_error": error,
        "compiled_grad_error_detail": about,
    }


def relative_error(actual: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> float:
    """||actual - expected|| / ||expected||, all parameters together."""
    difference = {name: actual[name].double() - tensor.double() for name, tensor in expected.items()}
    return _norm(difference) / _norm(expected)


def _norm(tensors: dict[str, torch.Tensor]) -> float:
    return sum(tensor.double().square().sum().item() for tensor in tensors.values()) ** 0.5


def memory(bench: Bench, sharing: float) -> dict[str, Any]:
    """`memory_padded_R`: peak memory above the loaded model, gradients included, ours / padded, all in one pass."""
    rollouts = rollouts_for(bench, sharing, full=1024, quick=1024)
    folder = bench.model(model_for(bench))
    peaks = {
        f"{side}_bytes": in_fresh_process(side_peak, side, folder, rollouts, sharing) for side in ("ours", "padded")
    }
    key = f"memory_padded_{sharing:.1f}"
    return {key: peaks["ours_bytes"] / peaks["padded_bytes"], f"{key}_detail": peaks | workload(bench, rollouts)}


def side_peak(name: str, folder: str, rollouts: Rollouts, sharing: float) -> int:
    """Bytes that one side needs above its loaded model at its peak, gradients included."""
    warm_up = make_side(name, folder, make_rollouts([make_question(sharing, WARM_UP_TOKENS)]), ONE_PASS)
    warm_up()
    warm_up.model.zero_grad(set_to_none=True)
    del warm_up
    return peak_bytes(make_side(name, folder, rollouts, ONE_PASS))


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
