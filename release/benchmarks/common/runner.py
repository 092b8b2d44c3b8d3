"""What the benchmark commands share: the command line, the run of each benchmark, the JSON file and the table.

The file is written after every benchmark. The exit status is 1 if one failed; a failed one has no number, and its
detail says why.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import json
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from release.benchmarks.common.bench import Bench
from release.benchmarks.common.machine import command, commit, load, machine, versions


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A function of a `Bench` that returns all `keys`, each with its `<key>_detail`.

    Attributes:
        function: "module:name", the module below `release.benchmarks`; it is imported when the benchmark runs.
        keys: the figures.
        full_only: whether a quick run leaves it out.
        arguments: passed to the function after the `Bench`.
    """

    function: str
    keys: tuple[str, ...]
    full_only: bool = False
    arguments: tuple[Any, ...] = ()

    def run(self, bench: Bench) -> dict[str, Any]:
        module, _, name = self.function.partition(":")
        results = getattr(importlib.import_module(f"release.benchmarks.{module}"), name)(bench, *self.arguments)
        expected = {*self.keys, *map(detail_key, self.keys)}
        if results.keys() != expected:
            raise ValueError(f"{self.function} returned {sorted(results)} instead of {sorted(expected)}.")
        return results


def detail_key(key: str) -> str:
    return f"{key}_detail"


def parse_args(
    arguments: Sequence[str] | None, benchmarks: Sequence[Benchmark], description: str
) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", required=True, type=Path, metavar="FILE", help="where the results are written")
    parser.add_argument("--quick", action="store_true", help="smaller workloads: under ten minutes on two cores")
    parser.add_argument("--only", metavar="KEY[,KEY]", help="only the benchmarks that give these figures")
    parser.add_argument("--tiny", action="store_true", help="tiny models: tests the benchmarks, measures nothing")
    args = parser.parse_args(arguments)
    known = {key for benchmark in benchmarks for key in benchmark.keys}
    args.only = known if args.only is None else set(args.only.split(","))
    if unknown := sorted(args.only - known):
        parser.error(f"--only: unknown {', '.join(unknown)}; known are {', '.join(sorted(known))}")
    args.size = "tiny" if args.tiny else "quick" if args.quick else "full"
    return args


def run_one(benchmark: Benchmark, bench: Bench) -> dict[str, Any]:
    """The benchmark's figures and details; None for missing figures, with the reason in the detail."""
    if benchmark.full_only and bench.size != "full":
        return _without_figures(benchmark, {"skipped": "only a run without --quick measures this"})
    start, load_before = time.perf_counter(), load()
    try:
        results = benchmark.run(bench)
    except Exception as error:
        traceback.print_exc()
        bench.close_engines()  # They may be in the midst of something.
        return _without_figures(benchmark, {"failed": f"{type(error).__name__}: {error}"})
    for key in benchmark.keys:
        results[detail_key(key)] |= {
            "benchmark_s": round(time.perf_counter() - start, 1),
            "load_before": load_before,
            "load_after": load(),
        }
    return results


def _without_figures(benchmark: Benchmark, reason: dict[str, str]) -> dict[str, Any]:
    return dict.fromkeys(benchmark.keys) | {detail_key(key): reason for key in benchmark.keys}


def write(path: Path, results: dict[str, Any]) -> None:
    """Replaces the file in one step."""
    scratch = path.with_name(path.name + ".part")
    scratch.write_text(json.dumps(results, indent=2) + "\n")
    scratch.replace(path)


def print_table(results: dict[str, Any], targets: Mapping[str, str]) -> None:
    keys = [key for key in targets if detail_key(key) in results]
    print(f"\n{'figure':36s} {'value':>10s}  {'target':10s} both sides")
    for key in keys:
        value, detail = results[key], results[detail_key(key)]
        shown = "-" if value is None else f"{value:.4g}"
        print(f"{key:36s} {shown:>10s}  {targets[key]:10s} {_sides(detail)}")


def _sides(detail: dict[str, Any]) -> str:
    """The entries that a benchmark names as its two sides, or why there are none."""
    for reason in ("failed", "skipped"):
        if reason in detail:
            return f"{reason}: {detail[reason]}"
    return ", ".join(f"{name} {detail[name]}" for name in detail["sides"])


def main(
    package: str,
    benchmarks: Sequence[Benchmark],
    targets: Mapping[str, str],
    description: str,
    arguments: Sequence[str] | None = None,
) -> int:
    """Runs the benchmarks that the command line asks for.

    Args:
        package: the command's package below `release.benchmarks`.
        benchmarks: all that there are, in the order in which they run.
        targets: figure -> what it should reach, in the order of the table.
        description: the text of `--help`.
        arguments: the command line's; None: those of this process.

    Returns:
        the exit status.
    """
    args = parse_args(arguments, benchmarks, description)
    results: dict[str, Any] = {
        "size": args.size,
        "command": command(package, arguments),
        "commit": commit(),
        "machine": machine(),
        "versions": versions(),
        "load": load(),
    }
    print("\n".join(f"{name}: {value}" for name, value in results.items()), flush=True)
    with tempfile.TemporaryDirectory(prefix="benchmark-") as scratch, contextlib.ExitStack() as stack:
        bench = Bench(Path(scratch), args.size)
        stack.callback(bench.close_engines)
        for benchmark in benchmarks:
            if args.only.isdisjoint(benchmark.keys):
                continue
            print(f"\n--- {', '.join(benchmark.keys)}", flush=True)
            measured = run_one(benchmark, bench)
            print(json.dumps(measured, indent=2), flush=True)
            results |= measured
            write(args.json, results)
    print_table(results, targets)
    failed = [key for key in targets if "failed" in results.get(detail_key(key), {})]
    if failed:
        print(f"\nFAILED: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0
