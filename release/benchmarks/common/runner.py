"""Shared by the benchmark commands: the command line, the run of each benchmark, the JSON file and the table.

The file is written after every benchmark. The exit status is 1 if one failed; a failed one has no number, and its
detail says why.
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
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from release.benchmarks.common.bench import Bench
from rllib_arpo.files import write_json
from rllib_arpo.tracking.machine import commit, machine, versions


@dataclass(frozen=True, slots=True)
class Benchmark:
    """A function of a `Bench` that returns all figures, each with its `<figure>_detail`.

    Attributes:
        targets: figure -> what it should reach.
        arguments: passed to the function after the `Bench`.
    """

    function: Callable[..., dict[str, Any]]
    targets: Mapping[str, str]
    arguments: tuple[Any, ...] = ()

    def run(self, bench: Bench) -> dict[str, Any]:
        """The figures and details; None for missing figures, with the reason in the detail."""
        begin, load_before = time.perf_counter(), load()
        try:
            results = self.function(bench, *self.arguments)
        except Exception as error:
            traceback.print_exc()
            bench.close_engines()  # They may be in the midst of something.
            return missing(self.targets, failed=f"{type(error).__name__}: {error}")
        took = {"benchmark_s": round(time.perf_counter() - begin, 1), "load_before": load_before, "load_after": load()}
        return results | {f"{key}_detail": results[f"{key}_detail"] | took for key in self.targets}


def missing(keys: Sequence[str] | Mapping[str, str], **reason: str) -> dict[str, Any]:
    return dict.fromkeys(keys) | {f"{key}_detail": reason for key in keys}


def load() -> float:
    """Processes that ran or waited for a core, mean of the last minute."""
    return round(os.getloadavg()[0], 2)


def about(package: str, size: str, arguments: Sequence[str] | None) -> dict[str, Any]:
    """A results file's facts of how and where it was made."""
    own = sys.argv[1:] if arguments is None else arguments
    command = shlex.join(["python", "-m", f"release.benchmarks.{package}", *own])
    here = {"commit": commit(), "machine": machine(), "versions": versions(), "load": load()}
    return {"size": size, "command": command, **here}


def print_table(results: Mapping[str, Any], targets: Mapping[str, str]) -> None:
    """A line a figure, with the reason where it is missing."""
    print(f"\n{'figure':36s} {'value':>10s}  target")
    for key, target in targets.items():
        value, detail = results[key], results[f"{key}_detail"]
        shown = "-" if value is None else f"{value:.4g}"
        print(f"{key:36s} {shown:>10s}  {target:10s} {detail.get('failed') or detail.get('skipped') or ''}".rstrip())


def make_parser(description: str) -> argparse.ArgumentParser:
    """The options of all commands; `description` is the text of `--help`."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", required=True, type=Path, metavar="FILE", help="where the results are written")
    parser.add_argument("--quick", action="store_true", help="smaller workloads: under ten minutes on two cores")
    parser.add_argument("--tiny", action="store_true", help="tiny models: tests the benchmarks, measures nothing")
    return parser


def main(
    package: str, benchmarks: Sequence[Benchmark], description: str, arguments: Sequence[str] | None = None
) -> int:
    """Runs the benchmarks whose figures the command line asks for; the exit status."""
    known = {key for benchmark in benchmarks for key in benchmark.targets}
    parser = make_parser(description)
    parser.add_argument("--only", metavar="KEY[,KEY]", help="only the benchmarks that give these figures")
    args = parser.parse_args(arguments)
    only = known if args.only is None else set(args.only.split(","))
    if unknown := sorted(only - known):
        parser.error(f"--only: unknown {', '.join(unknown)}; known are {', '.join(sorted(known))}")
    return run(package, [one for one in benchmarks if not only.isdisjoint(one.targets)], args, arguments)


def run(
    package: str, benchmarks: Sequence[Benchmark], args: argparse.Namespace, arguments: Sequence[str] | None
) -> int:
    """Runs the benchmarks in their order, writes the file after each, prints the table; the exit status.

    Args:
        package: the command's package below `release.benchmarks`.
        args: of `make_parser`'s parser, from these `arguments`; None: those of this process.
    """
    size = "tiny" if args.tiny else "quick" if args.quick else "full"
    results = about(package, size, arguments)
    print("\n".join(f"{name}: {value}" for name, value in results.items()), flush=True)
    with tempfile.TemporaryDirectory(prefix="benchmark-") as scratch, contextlib.ExitStack() as stack:
        bench = Bench(Path(scratch), size)
        stack.callback(bench.close_engines)
        for benchmark in benchmarks:
            print(f"\n--- {', '.join(benchmark.targets)}", flush=True)
            measured = benchmark.run(bench)
            print(json.dumps(measured, indent=2), flush=True)
            results |= measured
            write_json(args.json, results)
    targets = {key: target for benchmark in benchmarks for key, target in benchmark.targets.items()}
    print_table(results, targets)
    failed = [key for key in targets if "failed" in results[f"{key}_detail"]]
    if failed:
        print(f"\nFAILED: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0
