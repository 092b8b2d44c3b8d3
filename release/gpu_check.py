"""Checks this package on a GPU: runs the tests of tests/gpu, keeps their figures in a file, and prints them.

    python release/gpu_check.py --json gpu.json                       # all parts, one after the other
    python release/gpu_check.py --json gpu.json --only update rollout

A part is a file of tests. It runs in its own process, which ends within nine minutes, or soon after the seconds of
`--limit`; the JSON file then has its results. The same command goes on with the parts that have not passed. The folder
gpu.json.work has models, logs and each part's report, with a line of JSON for each figure and each test. A part that is
cut off keeps its figures, and a check that gets SIGTERM or Ctrl-C writes its file before it ends. `--tiny` runs tiny
models, also on a CPU, and judges no speed. A test that needs another vLLM or a second GPU is skipped and says so.
The exit status is 1 if a part failed. The targets of speed are for one H200.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parent.parent
PARTS = (
    "attention", "profile", "update", "rollout", "distributed", "probes", "weights", "training", "engine", "sharing",
    "main_job",
)  # fmt: skip
#: Seconds after which a part is asked to end, and the seconds that it then has, twice.
LIMIT_S, GRACE_S = 510.0, 5.0
#: The reason for a part during which the check itself was asked to end.
ENDED = "the check was asked to end"


def run_part(name: str, work: Path, *, tiny: bool, limit: float) -> dict[str, Any]:
    report, log, begin = work / f"{name}.jsonl", work / f"{name}.log", time.monotonic()
    report.write_text("")
    command = [sys.executable, "-m", "pytest", "-otimeout=0", f"tests/gpu/test_{name}.py"]
    path = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")]))
    environment = {**os.environ, "PYTHONPATH": path, "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    size = "tiny" if tiny else "full"
    environment |= {"GPU_CHECK": size, "GPU_CHECK_WORK": str(work), "GPU_CHECK_REPORT": str(report)}
    # A group can be ended as a whole. A session of its own would outlive a check that is killed with its session.
    options = {"cwd": REPOSITORY, "env": environment, "stderr": subprocess.STDOUT, "process_group": 0}
    with log.open("w") as output:
        process = subprocess.Popen(command, stdout=output, **options)
        try:
            status = process.wait(limit)
            reason = "" if status in (0, 1) else f"pytest ended with status {status}"
        except subprocess.TimeoutExpired:
            reason = f"took longer than {limit:g} s"
        except KeyboardInterrupt:
            reason = ENDED
        finally:
            _end(process)
    return read_part(report, reason, log) | {"seconds": round(time.monotonic() - begin, 1)}


def _end(process: subprocess.Popen) -> None:
    """Ends a part's processes. First it interrupts pytest, which then closes its engines and says where it was."""
    if process.poll() is None:
        process.send_signal(signal.SIGINT)
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, number)


def read_part(report: Path, reason: str, log: Path) -> dict[str, Any]:
    """A part's `status`, the `reason` if it did not end well, its `tests` with their figures, and where it ran.

    The report has every figure up to the part's end, however it ended. A test without a status was cut off.
    """
    tests: dict[str, dict[str, Any]] = {}
    where: dict[str, Any] = {}
    for entry in map(json.loads, report.read_text().splitlines()):
        if "test" not in entry:
            where |= entry
            continue
        test = tests.setdefault(entry.pop("test"), {"status": "cut", "reason": "", "figures": {}})
        if "figure" in entry:
            test["figures"][entry.pop("figure")] = entry
        else:
            test |= entry
    found = {test["status"] for test in tests.values()}
    failed = reason or not tests or found & {"failed", "cut"}
    status = "failed" if failed else "passed" if "passed" in found else "skipped"
    last = log.read_text(errors="replace").splitlines()[-25:] if failed else []
    return {"status": status, "reason": reason, **where, "tests": tests, "output": last}


def show(name: str, part: dict[str, Any]) -> None:
    print(f"{name}: {part['status']}, {part['seconds']:.0f} s {part['reason']}", flush=True)
    for test, entry in part["tests"].items():
        print(f"  {test}: {entry['status']} {entry['reason']}")
        for figure, row in entry["figures"].items():
            print(f"    {figure:58s} {row['value']} {row['unit']} {row['target']}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path, metavar="FILE", default="gpu.json", help="results; an old file continues")
    parser.add_argument("--only", nargs="+", choices=PARTS, default=PARTS, metavar="PART", help="run only these parts")
    parser.add_argument("--limit", type=float, metavar="SECONDS", default=LIMIT_S, help="end a part after this time")
    parser.add_argument("--tiny", action="store_true", help="tiny models, also on a CPU, to test the check")
    args = parser.parse_args()
    size, file = "tiny" if args.tiny else "full", args.json.resolve()
    results = json.loads(file.read_text()) if file.exists() else {"size": size, "parts": {}}
    if results["size"] != size:
        parser.error(f"{file} has results of a {results['size']} run: name another file for a {size} one")
    parts, work = results["parts"], file.with_name(f"{file.name}.work")
    work.mkdir(parents=True, exist_ok=True)
    for name in args.only:
        if name not in parts or parts[name]["status"] != "passed":
            parts[name] = run_part(name, work, tiny=args.tiny, limit=args.limit)
            (work / "results").write_text(json.dumps(results, indent=2) + "\n")
            (work / "results").replace(file)
        show(name, parts[name])
        if parts[name]["reason"] == ENDED:
            break
    return int(any(parts[name]["status"] == "failed" for name in args.only if name in parts))


def end(*_: object) -> None:
    """Ends the check like Ctrl-C, but only once: `timeout` sends its signal to the check and to its group."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise KeyboardInterrupt


if __name__ == "__main__":
    signal.signal(signal.SIGTERM, end)
    sys.exit(main())
