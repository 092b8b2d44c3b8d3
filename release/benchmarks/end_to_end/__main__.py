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
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from release.benchmarks.common.bench import BenchmarkError, num_cores
from release.benchmarks.common.runner import about, load, missing, print_table, write
from release.benchmarks.end_to_end.figures import TARGETS, figures, print_sides
from release.benchmarks.end_to_end.task_file import SIDES, SIZES, TRL, make_model, make_request

REPOSITORY = Path(__file__).resolve().parents[3]


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
    of_trl = {"weights": args.trl_weights, "autocast": args.trl_autocast, "rows_per_pass": args.trl_rows}
    model, results = make_model(args.size, folder), {}
    for turn, seed in enumerate(args.seeds):
        for side in sides if turn % 2 == 0 else reversed(sides):
            file = folder / f"{side}-{seed}.json"
            if not file.exists():
                print(f"--- {side}, seed {seed}, load {load()}", flush=True)
                request = make_request(size, side, model, seed, of_trl | {"vllm": args.trl_vllm}, args.gpu)
                write(file, run_side(request, args.trl_python, folder) | {"load_after": load()})
            results.setdefault(side, []).append(json.loads(file.read_text()))
    return results


def run_side(request: Mapping[str, Any], trl_python: Path, folder: Path) -> dict[str, Any]:
    """The result of a side, which runs in a process of its own.

    Args:
        trl_python: of the environment with TRL.
        folder: for the request, the result and the process's output.

    Raises:
        BenchmarkError: the process failed.
    """
    side = request["side"]
    module, python = ("trl_side", str(trl_python)) if side == TRL else ("our_side", sys.executable)
    asked, result, log = (folder / f"{side}-{request['seed']}{end}" for end in (".request", ".result", ".log"))
    asked.write_text(json.dumps(request))
    path = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")]))
    threads = {"OMP_NUM_THREADS": str(num_cores()), "TOKENIZERS_PARALLELISM": "false", "PYTHONPATH": path}
    environment = os.environ | threads | {"HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}
    command = [python, "-m", f"release.benchmarks.end_to_end.{module}", str(asked), str(result)]
    with log.open("w") as output:
        done = subprocess.run(command, cwd=REPOSITORY, env=environment, stdout=output, stderr=subprocess.STDOUT)
    if done.returncode:
        raise BenchmarkError(f"{side}'s process ended with status {done.returncode}; {log} says why.")
    return json.loads(result.read_text())


def main(arguments: Sequence[str] | None = None) -> int:
    args = parse_args(arguments)
    told = about("end_to_end", args.size, arguments)
    with tempfile.TemporaryDirectory(prefix="benchmark-") as scratch:
        folder = args.runs or Path(scratch)
        folder.mkdir(parents=True, exist_ok=True)
        results = figures(run_all(args, folder))
    if not args.trl_python.exists():
        unknown = [key for key in TARGETS if results[key] is None]
        results |= missing(unknown, skipped=f"TRL's environment is missing: there is no {args.trl_python}")
    write(args.json, told | results)
    print_sides(results)
    print_table(results, TARGETS)
    return 0


if __name__ == "__main__":
    sys.exit(main())
