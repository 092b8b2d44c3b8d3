"""Compares TRL's GRPOTrainer with a tool to this package's GRPO and ARPO on the trails task: iterations per hour.

First make an environment for TRL (with the CPU build of torch, like the project's):

    python -m venv .venv-trl
    .venv-trl/bin/pip install trl==1.16.0 torch==2.13.0 transformers==5.19.0 accelerate==1.15.0 datasets==5.2.0

Then run the benchmark:

    python -m release.benchmarks.end_to_end --json end_to_end.json            # SmolLM2-135M, the main job
    python -m release.benchmarks.end_to_end --json end_to_end.json --quick    # a model of 1.3 million parameters

Each side runs in its own process, one after the other. Without TRL's environment its figures are missing, and the table
says so.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from release.benchmarks.common import bench
from release.benchmarks.common.bench import Bench, Benchmark, BenchmarkError, load, missing, spread
from release.benchmarks.end_to_end.task_file import ALGORITHMS, SIDES, SIZES, TRL, make_model, make_request
from rllib_arpo.tracking.machine import num_cores

REPOSITORY = Path(__file__).resolve().parents[3]
#: Name of a ratio -> the column of an iteration.
RATIOS = {"speedup": "seconds", "sampling_speedup": "sampling_s", "update_speedup": "update_s"}
PER_HOUR = {side: f"iterations_per_hour_{side}" for side in SIDES}
TARGETS = {
    **{PER_HOUR[side]: "reported" for side in SIDES},
    **{f"{ratio}_{side}": "reported" for side in ALGORITHMS for ratio in RATIOS},
    **{f"speedup_{side}": ">= 6" for side in ALGORITHMS},
}
#: This many iterations at the start of a run do not count.
WARM_UP = 1

#: Side -> the result of its run.
Runs = Mapping[str, Mapping[str, Any]]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--sides", nargs="+", choices=SIDES, default=SIDES, help="run only these sides")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--gpu",
        action="store_true",
        help="run both sides on one GPU; TRL samples with vLLM if its environment has it (not tried yet)",
    )
    parser.add_argument("--trl-python", type=Path, default=REPOSITORY / ".venv-trl/bin/python", metavar="FILE")


def compare(run: Bench) -> dict[str, Any]:
    """Runs the sides, one after the other, and returns all figures."""
    args, runs = run.args, {}
    has_trl = args.trl_python.exists()
    vllm = args.gpu and has_trl and _has_vllm(args.trl_python)
    model = make_model(run.size, run.scratch)
    for side in [side for side in SIDES if side in args.sides and (side != TRL or has_trl)]:
        print(f"--- {side}, load {load()}", flush=True)
        request = make_request(SIZES[run.size], side, model, args.seed, gpu=args.gpu, vllm=vllm)
        runs[side] = run_side(request, args.trl_python, run.scratch) | {"load_after": load()}
    return figures(runs, {} if has_trl else {TRL: f"TRL's environment is missing: there is no {args.trl_python}"})


def _has_vllm(python: Path) -> bool:
    look = "import importlib.util, sys; sys.exit(importlib.util.find_spec('vllm') is None)"
    return subprocess.run([python, "-c", look], check=False).returncode == 0


def run_side(request: Mapping[str, Any], trl_python: Path, folder: Path) -> dict[str, Any]:
    """Runs a side in its own process and returns the result.

    Args:
        trl_python: the Python of TRL's environment.
        folder: the folder for the request, the result and the process's output.

    Raises:
        BenchmarkError: the process failed.
    """
    side = request["side"]
    module, python = ("trl_side", str(trl_python)) if side == TRL else ("our_side", sys.executable)
    asked, result, log = (folder / f"{side}{end}" for end in (".request", ".result", ".log"))
    asked.write_text(json.dumps(request))
    path = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")]))
    threads = {"OMP_NUM_THREADS": str(num_cores()), "TOKENIZERS_PARALLELISM": "false", "PYTHONPATH": path}
    environment = os.environ | threads | {"HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}
    command = [python, "-m", f"release.benchmarks.end_to_end.{module}", str(asked), str(result)]
    with log.open("w") as output:
        done = subprocess.run(command, cwd=REPOSITORY, env=environment, stdout=output, stderr=subprocess.STDOUT)
    if done.returncode:
        raise BenchmarkError(f"{side}'s process ended with status {done.returncode}: {log.read_text()[-1000:]}")
    return json.loads(result.read_text())


def figures(runs: Runs, reasons: Mapping[str, str]) -> dict[str, Any]:
    """Every figure of `TARGETS` with its detail. If a side is missing, the figure is None, and the detail says why.

    Args:
        reasons: side -> why it is missing, unless the command line left it out.
    """

    def missing_of(side: str, key: str) -> dict[str, Any]:
        return missing([key], skipped=reasons.get(side, f"there is no run of {side}"))

    results: dict[str, Any] = {}
    for side, key in PER_HOUR.items():
        results |= _speed(key, runs[side]) if side in runs else missing_of(side, key)
    for side in ALGORITHMS:
        absent = [one for one in (TRL, side) if one not in runs]
        for name, column in RATIOS.items():
            key = f"{name}_{side}"
            if absent:
                results |= missing_of(absent[0], key)
                continue
            theirs, ours = (_column(runs[one], column) for one in (TRL, side))
            detail = {f"{TRL}_s": spread(theirs), f"{side}_s": spread(ours)}
            results |= {key: float(np.mean(theirs) / np.mean(ours)), f"{key}_detail": detail}
    return results


def _speed(key: str, run: Mapping[str, Any]) -> dict[str, Any]:
    """Iterations per hour; the detail has everything else about the side."""
    columns = {name: _column(run, name) for name in run["iterations"][0]}
    detail = {
        **{name: spread(values) for name, values in columns.items()},
        **{f"{name}_mean": float(np.mean(values)) for name, values in columns.items()},
        "warm_up_s": run["iterations"][0]["seconds"],
        **{name: run[name] for name in ("start_s", "load_after", "versions", "threads", "setting")},
    }
    return {key: 3600 / float(np.mean(columns["seconds"])), f"{key}_detail": detail}


def _column(run: Mapping[str, Any], name: str) -> list[float]:
    return [row[name] for row in run["iterations"][WARM_UP:]]


def main(arguments: Sequence[str] | None = None) -> int:
    return bench.main("end_to_end", [Benchmark(compare, TARGETS)], __doc__, arguments, add_arguments)


if __name__ == "__main__":
    sys.exit(main())
