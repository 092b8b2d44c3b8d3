"""Peak memory of our forward and backward against a padded batch."""

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

from release.benchmarks.common.bench import Bench
from release.benchmarks.learner.rollouts import Rollouts, make_rollouts
from release.benchmarks.learner.sides import make_side
from release.benchmarks.learner.tree_speedup import model_for, rollouts_for, workload
from release.benchmarks.learner.tree_workload import make_question

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
    return {key: peaks["ours_bytes"] / peaks["padded_bytes"], f"{key}_detail": peaks | workload(bench, rollouts)}


def side_peak(name: str, folder: str, rollouts: Rollouts, sharing: float) -> int:
    """Bytes that one side needs above its loaded model at its peak, gradients included."""
    warm_up = make_side(name, folder, make_rollouts([make_question(sharing, WARM_UP_TOKENS)]), ONE_PASS)
    warm_up()
    warm_up.model.zero_grad(set_to_none=True)
    del warm_up
    return peak_bytes(make_side(name, folder, rollouts, ONE_PASS))
