"""Checks this package on a GPU: correctness, speed against its targets, and the main job; a table and a JSON file.

    python release/gpu_check.py --json gpu.json                       # all parts, one after the other
    python release/gpu_check.py --json gpu.json --only update rollout
    python release/gpu_check.py --json gpu.json --again update        # once more, and all that are missing
    python release/gpu_check.py --list
    python release/gpu_check.py --table gpu.json

Each part is a process of its own that is ended within nine minutes. Its figures are in the file when it ends, and the
same command goes on with the parts that are not in there. Models, logs and the figures of the part that runs are in the
folder gpu.json.work. What this machine cannot run says why. `--tiny` runs tiny models, also on a CPU: that tests the
check and judges no speed. The exit status is 1 if a part failed. The targets of speed are those for one H200.
"""

from __future__ import annotations

import argparse
import os
import shlex
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent
if __package__ in (None, ""):
    sys.path[0] = str(REPOSITORY)

from release.gpu_parts.parts import LIMIT_S, NAMES, PARTS  # noqa: E402
from release.gpu_parts.report import Outcome  # noqa: E402
from release.gpu_parts.results import Results, part_entry, table  # noqa: E402
from release.processes import run_within  # noqa: E402


def make_parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--json", type=Path, metavar="FILE", help="run the check; its results, which it continues")
    what.add_argument("--list", action="store_true", help="name the parts")
    what.add_argument("--table", type=Path, metavar="FILE", help="print the table of results, run nothing")
    parser.add_argument("--only", nargs="+", choices=NAMES, default=NAMES, metavar="PART", help="only these parts")
    parser.add_argument("--again", nargs="+", choices=NAMES, default=(), metavar="PART", help="also if they are done")
    parser.add_argument("--tiny", action="store_true", help="tiny models, also on a CPU: tests the check")
    return parser


def run_part(name: str, work: Path, *, tiny: bool) -> dict[str, Any]:
    """Runs a part in its process; returns its entry."""
    rows, log = work / f"{name}.rows", work / f"{name}.log"
    rows.unlink(missing_ok=True)
    command = [sys.executable, "-m", "release.gpu_parts.process", name, "--rows", str(rows), "--work", str(work)]
    begin = time.monotonic()
    status = run_within([*command, *["--tiny"] * tiny], LIMIT_S, log, _environment())
    return part_entry(rows, log, status, time.monotonic() - begin, LIMIT_S)


def _environment() -> dict[str, str]:
    path = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")]))
    return {**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}


def run(args: argparse.Namespace, command: str) -> Results:
    """Runs the parts that are asked for and not done."""
    path = args.json.resolve()
    results = Results.of_run(path, "tiny" if args.tiny else "full", command)
    work = path.with_name(f"{path.name}.work")
    work.mkdir(parents=True, exist_ok=True)
    for part in PARTS:
        if part.name in args.again or (part.name in args.only and part.name not in results.parts):
            print(f"{part.name}: {part.about} ...", flush=True)
            results.put(part.name, run_part(part.name, work, tiny=args.tiny))
            entry = results.parts[part.name]
            said = ", ".join(filter(None, [entry["outcome"], entry["reason"], f"{entry['seconds']:.0f} s"]))
            print(f"{part.name}: {said}", flush=True)
    return results


def main(arguments: Sequence[str] | None = None) -> int:
    args = make_parser().parse_args(arguments)
    if args.list:
        print("\n".join(f"{part.name:13s} {part.about}" for part in PARTS))
        return 0
    try:
        command = shlex.join(["python", "release/gpu_check.py", *(sys.argv[1:] if arguments is None else arguments)])
        results = Results.read(args.table) if args.table else run(args, command)
    except ValueError as error:
        print(f"error: {error}", file=sys.stderr)
        return 2
    print(table({name: results.parts[name] for name in NAMES if name in results.parts}))
    return int(any(part["outcome"] == Outcome.FAILED for part in results.parts.values()))


if __name__ == "__main__":
    # Otherwise the processes of a part would outlive a check that is asked to end.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    sys.exit(main())
