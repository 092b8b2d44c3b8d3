"""TRL's GRPOTrainer with a tool against this package's GRPO and ARPO, on the trails task: iterations per hour.

    python -m venv .venv-trl
    .venv-trl/bin/pip install trl==1.16.0 torch==2.13.0 transformers==5.19.0 accelerate==1.15.0 datasets==5.2.0

makes TRL's environment (torch in its CPU build, as the project has it). Then

    python -m release.benchmarks.end_to_end --json end_to_end.json            # SmolLM2-135M, the main job
    python -m release.benchmarks.end_to_end --json end_to_end.json --quick    # a model of 1.3 million parameters

Each side is a process of its own, one at a time, in turn. A run's result stays in the folder of --runs, and what lies
there already is not run again. Without TRL's environment its figures are missing, and the table says so.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from release.benchmarks.common.machine import command, commit, load, machine, versions
from release.benchmarks.common.runner import print_table, write
from release.benchmarks.end_to_end.figures import TARGETS, figures, print_sides
from release.benchmarks.end_to_end.processes import REPOSITORY, run_side
from release.benchmarks.end_to_end.task_file import SIDES, SIZES, TRL, TRLSetting, make_model, make_request


def parse_args(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", required=True, type=Path, metavar="FILE", help="where the results are written")
    parser.add_argument("--quick", action="store_true", help="the small model")
    parser.add_argument("--tiny", action="store_true", help="a tiny model: tests the benchmark, measures nothing")
    parser.add_argument("--only", nargs="+", choices=SIDES, default=SIDES, help="only these sides")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0], help="a run of each side for each of them")
    parser.add_argument("--iterations", type=int, help="of a run; the first one does not count")
    parser.add_argument("--runs", type=Path, metavar="FOLDER", help="of the runs' files; default: a temporary one")
    parser.add_argument("--gpu", action="store_true", help="both sides on one GPU (never run so far)")
    parser.add_argument("--trl-python", type=Path, default=REPOSITORY / ".venv-trl/bin/python", metavar="FILE")
    parser.add_argument(
        "--trl-weights", default="bfloat16", choices=("bfloat16", "float32"), help="type of TRL's weights"
    )
    parser.add_argument("--trl-autocast", action="store_true", help="TRL's forward passes in bfloat16 by autocast")
    parser.add_argument("--trl-vllm", action="store_true", help="TRL samples with vLLM; with --gpu (never run so far)")
    parser.add_argument("--trl-rows", type=int, default=8, help="trajectories per pass of TRL's update")
    args = parser.parse_args(arguments)
    if args.trl_vllm and not args.gpu:
        parser.error("--trl-vllm: TRL runs vLLM on a GPU: say --gpu as well")
    args.size = "tiny" if args.tiny else "quick" if args.quick else "full"
    return args


def run_all(args: argparse.Namespace, folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Side -> its results by seed. The sides take turns; a seed's first side is another one than the last seed's."""
    size = SIZES[args.size]
    if args.iterations:
        size = replace(size, num_iterations=args.iterations)
    sides = [side for side in SIDES if side in args.only and (side != TRL or args.trl_python.exists())]
    setting = TRLSetting(args.trl_weights, args.trl_autocast, args.trl_rows, args.trl_vllm)
    model, results = make_model(args.size, folder), {}
    for turn, seed in enumerate(args.seeds):
        for side in sides if turn % 2 == 0 else reversed(sides):
            file = folder / f"{side}-{seed}.json"
            if not file.exists():
                print(f"--- {side}, seed {seed}, load {load()}", flush=True)
                request = make_request(size, side, model, seed, setting, args.gpu)
                write(file, run_side(request, args.trl_python, folder) | {"load_after": load()})
            results.setdefault(side, []).append(json.loads(file.read_text()))
    return results


def main(arguments: Sequence[str] | None = None) -> int:
    args = parse_args(arguments)
    about = {
        "size": args.size,
        "command": command("end_to_end", arguments),
        "commit": commit(),
        "machine": machine(),
        "versions": versions(),
        "load": load(),
    }
    with tempfile.TemporaryDirectory(prefix="benchmark-") as scratch:
        folder = args.runs or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        runs = run_all(args, folder)
    results = figures(runs)
    if not args.trl_python.exists():
        reason = {"skipped": f"TRL's environment is missing: there is no {args.trl_python}"}
        results |= {f"{key}_detail": reason for key in TARGETS if results[key] is None}
    write(args.json, about | results)
    print_sides(results)
    print_table(results, TARGETS)
    return 0


if __name__ == "__main__":
    sys.exit(main())
