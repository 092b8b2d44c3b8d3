"""Peak memory of a function: in a process of its own, in which nothing else was freed before."""

from __future__ import annotations

import ctypes
import gc
import multiprocessing
import os
import re
import sys
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any
from unittest.mock import patch

#: glibc gives blocks above this size back to the system when they are freed, so that the resident memory is what is in
#: use. By default it raises the limit to 32 MiB as it goes.
_GLIBC = {"MALLOC_MMAP_THRESHOLD_": str(1 << 20), "MALLOC_TRIM_THRESHOLD_": str(1 << 20)}

#: The modules that most functions need and that take long to import.
_PRELOAD = ("rllib_arpo.learner.arpo_torch_learner", "transformers.models.llama.modeling_llama")


def in_fresh_process(function: Callable, *args: Any) -> Any:
    """The result of `function(*args)` in a new process, which has made imports and done no more.

    It is forked from a server that was started for this purpose alone, not from this process.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([function.__module__, *_PRELOAD])
    # The server's imports see this path alone; it reads the environment once, when the first process is asked for.
    path = {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with patch.dict(os.environ, _GLIBC | path), ProcessPoolExecutor(1, context) as pool:
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
