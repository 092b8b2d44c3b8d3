"""Runs benchmarks: the command line, the settings of a run, an engine with its thread, and small statistics.

A command writes its file after every benchmark. A failed benchmark has no number, its detail says why, and the exit
status is 1.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shlex
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from release.benchmarks.common.endless_models import endless_smollm2, random_model
from rllib_arpo.files import write_json
from rllib_arpo.tracking.machine import commit, machine, num_cores, versions

SMOLLM2 = "SmolLM2-135M-Instruct, fp32"
SMOLLM2_FIFTH = "random Llama of SmolLM2-135M's widths, with a fifth of its layers (6) and words (V = 9,830), fp32"
HYBRID = "random Qwen3.5 (text) of the same widths, 6 layers with a state and 2 with full attention, fp32"
SMALL_LLAMA = "random Llama (hidden 384, 6 layers, V = 8192), fp32"
TINY_LLAMA = "random Llama (hidden 64, 2 layers, V = 300), fp32"
_LLAMA = partial(random_model, architecture="llama", head_dim=64)
#: The widths of SmolLM2-135M, and a fifth of its words.
_SMOLLM2 = {"vocab_size": 9830, "hidden_size": 576, "intermediate_size": 1536, "num_attention_heads": 9}
_STATES = {
    "linear_num_key_heads": 3, "linear_num_value_heads": 9, "linear_key_head_dim": 64, "linear_value_head_dim": 64,
}  # fmt: skip
MAKERS: dict[str, Callable[[Path], str]] = {
    SMOLLM2: endless_smollm2,
    SMALL_LLAMA: partial(
        _LLAMA, vocab_size=8192, hidden_size=384, intermediate_size=768, num_hidden_layers=6, num_attention_heads=6,
        num_key_value_heads=1,
    ),
    SMOLLM2_FIFTH: partial(_LLAMA, **_SMOLLM2, num_hidden_layers=6, num_key_value_heads=3),
    HYBRID: partial(
        random_model, architecture="qwen3_5_text", **_SMOLLM2, **_STATES, num_hidden_layers=8, num_key_value_heads=3,
        head_dim=64,
    ),
    TINY_LLAMA: partial(
        random_model, architecture="llama", vocab_size=300, hidden_size=64, intermediate_size=128,
        num_hidden_layers=2, num_attention_heads=2, num_key_value_heads=1, head_dim=32,
    ),
}  # fmt: skip
MAX_CONTEXT_TOKENS = 2048
#: Each engine's share of a GPU's memory; a run keeps several engines.
SHARE = 0.2


class BenchmarkError(Exception):
    """A benchmark has no valid result."""


class EngineHandle:
    """A `VLLMEngine` with the only thread that may use it."""

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
        """vLLM's own `LLMEngine`, for sides that do not use this package."""
        return self.engine._llm

    def call(self, function: Callable, *args: Any, **kwargs: Any) -> Any:
        """Runs a function in the engine's thread."""
        return self.thread.submit(function, *args, **kwargs).result()

    def drop_prefix_cache(self) -> None:
        if not self.call(self.llm.reset_prefix_cache):
            raise BenchmarkError("vLLM could not drop its prefix cache.")

    def close(self) -> None:
        self.call(self.engine.close)
        self.thread.shutdown()


@dataclass
class Bench:
    """One run of the benchmarks.

    Attributes:
        scratch: an empty folder.
        size: "full"; "quick": all benchmarks together take less than ten minutes on two cores; "tiny": a tiny model and
            the smallest workloads, to test the benchmarks themselves.
        args: the command's arguments.
    """

    scratch: Path
    size: str
    args: argparse.Namespace | None = None
    _engines: dict[str, EngineHandle] = field(default_factory=dict)

    def pick(self, *, full: Any, quick: Any, tiny: Any) -> Any:
        """The value for this run's size."""
        return {"full": full, "quick": quick, "tiny": tiny}[self.size]

    def model(self, name: str) -> str:
        """The folder of the model called `name`, which the first call makes."""
        name = self.model_name(name)
        folder = self.scratch / str(list(MAKERS).index(name))
        return str(folder) if folder.exists() else MAKERS[name](folder)

    def model_name(self, name: str) -> str:
        return TINY_LLAMA if self.size == "tiny" else name

    def engine(self, name: str) -> EngineHandle:
        """The engine for the model called `name`, on all cores. The first call starts it, and the run keeps it."""
        folder = self.model(name)
        if folder not in self._engines:
            self._engines[folder] = EngineHandle(folder)
        return self._engines[folder]

    def close_engines(self) -> None:
        while self._engines:
            self._engines.popitem()[1].close()


def timed(function: Callable, *args: Any, **kwargs: Any) -> tuple[float, Any]:
    """Returns (seconds, result). It also waits for the GPU, which may still compute when the call returns."""
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
    """For a benchmark's detail: the measured values with minimum, median and maximum."""
    low, middle, high = rounded((min(values), median(values), max(values)))
    return {"min": low, "median": middle, "max": high, "values": rounded(values)}


def ratio(key: str, over: str, under: str, measured: Mapping[str, Sequence[float]], **about: Any) -> dict[str, Any]:
    """The figure `key` with its detail: the median over repeats of the ratio of `over` to `under`.

    Args:
        measured: side -> a value for each repeat.
        about: further entries of the detail.
    """
    ratios = [a / b for a, b in zip(measured[over], measured[under], strict=True)]
    sides = {name: spread(values) for name, values in measured.items()}
    return {key: median(ratios), f"{key}_detail": {**sides, "ratios": spread(ratios), **about}}


def alternate(
    sides: dict[str, Callable[[int], float]], repeats: int, *, warm_up: bool = True
) -> dict[str, list[float]]:
    """Runs the sides in turn, `repeats` times each, after a warm-up that does not count; the order alternates.

    Args:
        sides: name -> a function that takes the repeat's number (-1: the warm-up) and returns a measurement.
    """
    names = list(sides)
    results: dict[str, list[float]] = {name: [] for name in names}
    for repeat in range(-1 if warm_up else 0, repeats):
        for name in names if repeat % 2 == 0 else reversed(names):
            value = sides[name](repeat)
            if repeat >= 0:
                results[name].append(value)
    return results


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A benchmark: its function takes a `Bench` and returns all figures, each with its `<figure>_detail`.

    Attributes:
        targets: figure -> its target.
        arguments: further arguments of the function.
    """

    function: Callable[..., dict[str, Any]]
    targets: Mapping[str, str]
    arguments: tuple[Any, ...] = ()

    def run(self, bench: Bench) -> dict[str, Any]:
        """The figures and details; a missing figure is None, and its detail says why."""
        begin, load_before = time.perf_counter(), load()
        try:
            results = self.function(bench, *self.arguments)
        except Exception as error:
            traceback.print_exc()
            bench.close_engines()  # They may still have requests.
            return missing(self.targets, failed=f"{type(error).__name__}: {error}")
        took = {"benchmark_s": round(time.perf_counter() - begin, 1), "load_before": load_before, "load_after": load()}
        return results | {f"{key}_detail": results[f"{key}_detail"] | took for key in self.targets}


def missing(keys: Iterable[str], **reason: str) -> dict[str, Any]:
    return dict.fromkeys(keys) | {f"{key}_detail": reason for key in keys}


def load() -> float:
    """How many processes ran or waited for a core, as the mean of the last minute."""
    return round(os.getloadavg()[0], 2)


def main(
    package: str,
    benchmarks: Sequence[Benchmark],
    description: str,
    arguments: Sequence[str] | None = None,
    add_arguments: Callable[[argparse.ArgumentParser], None] = lambda _: None,
) -> int:
    """Runs the benchmarks that the command line names, and prints a table; returns the exit status.

    Args:
        package: the command's package below `release.benchmarks`.
        description: the text of `--help`.
        arguments: None: this process's arguments.
        add_arguments: adds the command's own options.
    """
    known = {key: target for benchmark in benchmarks for key, target in benchmark.targets.items()}
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", required=True, type=Path, metavar="FILE", help="file for the results")
    parser.add_argument("--quick", action="store_true", help="smaller workloads, under ten minutes on two cores")
    parser.add_argument("--tiny", action="store_true", help="tiny models, to test the benchmarks; measures nothing")
    parser.add_argument("--only", metavar="KEY[,KEY]", help="run only the benchmarks with these figures")
    add_arguments(parser)
    args = parser.parse_args(arguments)
    only = known.keys() if args.only is None else set(args.only.split(","))
    if unknown := sorted(only - known.keys()):
        parser.error(f"--only: there is no figure {', '.join(unknown)}; there are {', '.join(sorted(known))}")
    chosen = [benchmark for benchmark in benchmarks if only & benchmark.targets.keys()]
    results = _run(package, chosen, args, sys.argv[1:] if arguments is None else arguments)
    print(f"\n{'figure':36s} {'value':>10s}  target")
    for key in [key for benchmark in chosen for key in benchmark.targets]:
        value, detail = results[key], results[f"{key}_detail"]
        number = "-" if value is None else f"{value:.4g}"
        print(
            f"{key:36s} {number:>10s}  {known[key]:10s} {detail.get('failed') or detail.get('skipped') or ''}".rstrip()
        )
    failed = [key for key in known if "failed" in results.get(f"{key}_detail", ())]
    if failed:
        print(f"\nFAILED: {', '.join(failed)}", file=sys.stderr)
    return int(bool(failed))


def _run(
    package: str, benchmarks: Sequence[Benchmark], args: argparse.Namespace, arguments: Sequence[str]
) -> dict[str, Any]:
    """The contents of the file: how and where it was made, and all figures."""
    size = "tiny" if args.tiny else "quick" if args.quick else "full"
    command = shlex.join(["python", "-m", f"release.benchmarks.{package}", *arguments])
    results = {"size": size, "command": command, "commit": commit(), "machine": machine(), "versions": versions()}
    print("\n".join(f"{name}: {value}" for name, value in results.items()), flush=True)
    with tempfile.TemporaryDirectory(prefix="benchmark-") as scratch, contextlib.ExitStack() as stack:
        bench = Bench(Path(scratch), size, args)
        stack.callback(bench.close_engines)
        for benchmark in benchmarks:
            print(f"\n--- {', '.join(benchmark.targets)}", flush=True)
            measured = benchmark.run(bench)
            print(json.dumps(measured, indent=2), flush=True)
            results |= measured
            write_json(args.json, results)
    return results
