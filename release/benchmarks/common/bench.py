"""Shared by all benchmarks: the settings of a run, the engine with the thread that owns it, and small statistics."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from release.benchmarks.common.endless_models import endless_llama, endless_smollm2
from rllib_arpo.tracking.machine import num_cores

SMOLLM2 = "SmolLM2-135M-Instruct, fp32"
SMALL_LLAMA = "random Llama (hidden 384, 6 layers, V = 8192), fp32"
SMOLLM2_FIFTH = "random Llama of SmolLM2-135M's widths, with a fifth of its layers (6) and words (V = 9,830), fp32"
TINY_LLAMA = "random Llama (hidden 64, 2 layers, V = 300), fp32"
MAKERS: dict[str, Callable[[Path], str]] = {
    SMOLLM2: endless_smollm2,
    SMALL_LLAMA: lambda folder: endless_llama(folder, hidden_size=384, num_layers=6, vocab_size=8192),
    SMOLLM2_FIFTH: lambda folder: endless_llama(
        folder, hidden_size=576, num_layers=6, vocab_size=9830, intermediate_size=1536, num_key_value_heads=3
    ),
    TINY_LLAMA: lambda folder: endless_llama(folder, hidden_size=64, num_layers=2, vocab_size=300),
}
MAX_CONTEXT_TOKENS = 2048
#: Of a GPU's memory, for each engine of a run, which keeps several.
SHARE = 0.2


class BenchmarkError(Exception):
    """A benchmark has no valid result."""


class EngineHandle:
    """A `VLLMEngine` and the one thread that may touch it."""

    def __init__(self, folder: str, dtype: str = "float32", engine_kwargs: dict[str, Any] | None = None):
        from rllib_arpo.engine import EngineConfig, make_engine

        self.folder = folder
        on_gpu = torch.cuda.is_available()
        share = {"gpu_memory_utilization": SHARE} if on_gpu else {}
        self.thread = ThreadPoolExecutor(1, thread_name_prefix="engine")
        self.config = EngineConfig(
            folder,
            dtype=dtype,
            max_context_tokens=MAX_CONTEXT_TOKENS,
            num_threads=num_cores(),
            engine_kwargs={**share, **(engine_kwargs or {})},
            shares_gpu=on_gpu,
        )
        self.engine = self.thread.submit(make_engine, "vllm", self.config).result()

    @property
    def llm(self):
        """vLLM's own `LLMEngine`, for the sides that do without this package."""
        return self.engine._llm

    def call(self, function: Callable, *args: Any, **kwargs: Any) -> Any:
        """Runs a function in the engine's thread."""
        return self.thread.submit(function, *args, **kwargs).result()

    def drop_prefix_cache(self) -> None:
        if not self.call(self.llm.reset_prefix_cache):
            raise BenchmarkError("vLLM did not drop its prefix cache.")

    def close(self) -> None:
        self.call(self.engine.close)
        self.thread.shutdown()


@dataclass
class Bench:
    """One run of the benchmarks.

    Attributes:
        scratch: an empty folder.
        size: "full"; "quick": all benchmarks together fit into ten minutes on two cores; "tiny": a tiny model and the
            smallest workloads, to test the benchmarks themselves.
    """

    scratch: Path
    size: str
    _engines: dict[str, EngineHandle] = field(default_factory=dict)

    def pick(self, *, full: Any, quick: Any, tiny: Any) -> Any:
        """The value for this run's size."""
        return {"full": full, "quick": quick, "tiny": tiny}[self.size]

    def model(self, name: str) -> str:
        """The folder of the model called `name`, made by its first call."""
        name = self.model_name(name)
        folder = self.scratch / str(list(MAKERS).index(name))
        return str(folder) if folder.exists() else MAKERS[name](folder)

    def model_name(self, name: str) -> str:
        return TINY_LLAMA if self.size == "tiny" else name

    def engine(self, name: str) -> EngineHandle:
        """The engine for the model called `name`, on all cores; started by its first call, then kept."""
        folder = self.model(name)
        if folder not in self._engines:
            self._engines[folder] = EngineHandle(folder)
        return self._engines[folder]

    def close_engines(self) -> None:
        while self._engines:
            self._engines.popitem()[1].close()


def timed(function: Callable, *args: Any, **kwargs: Any) -> tuple[float, Any]:
    """(seconds, result). A GPU goes on computing when a call returns; this waits for it."""
    start = time.perf_counter()
    result = function(*args, **kwargs)
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()
    return time.perf_counter() - start, result


def median(values: Sequence[float]) -> float:
    return float(np.median(values))


def rounded(values: Sequence[float], digits: int = 4) -> list[float]:
    return [round(float(value), digits) for value in values]


def spread(values: Sequence[float]) -> dict[str, Any]:
    """For a benchmark's detail: what was measured, with its smallest, median and largest value."""
    low, middle, high = rounded((min(values), median(values), max(values)))
    return {"min": low, "median": middle, "max": high, "values": rounded(values)}


def ratio(key: str, over: str, under: str, measured: Mapping[str, Sequence[float]], **about: Any) -> dict[str, Any]:
    """The figure `key` with its detail: the median of the pairs' ratios, of the side `over` to the side `under`.

    Args:
        measured: side -> one value a repeat.
        about: more of the detail.
    """
    ratios = [a / b for a, b in zip(measured[over], measured[under], strict=True)]
    sides = {name: spread(values) for name, values in measured.items()}
    return {key: median(ratios), f"{key}_detail": {**sides, "ratios": spread(ratios), **about}}


def alternate(
    sides: dict[str, Callable[[int], float]], repeats: int, *, warm_up: bool = True
) -> dict[str, list[float]]:
    """Runs the sides in turn, `repeats` times each, after one turn that does not count; the first side changes.

    Args:
        sides: name -> function of the repeat's number (-1: the one that does not count) that returns a measurement.
    """
    names = list(sides)
    results: dict[str, list[float]] = {name: [] for name in names}
    for repeat in range(-1 if warm_up else 0, repeats):
        for name in names if repeat % 2 == 0 else reversed(names):
            value = sides[name](repeat)
            if repeat >= 0:
                results[name].append(value)
    return results
