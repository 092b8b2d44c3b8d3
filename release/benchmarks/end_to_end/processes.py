"""Runs one side in a process of its own, and looks at the memory of it and of its descendants."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from release.benchmarks.common.bench import BenchmarkError, num_cores
from release.benchmarks.end_to_end.task_file import TRL

REPOSITORY = Path(__file__).resolve().parents[3]
#: Between two looks at the memory: each takes some milliseconds of a core.
LOOK_S = 5.0


def run_side(request: Mapping[str, Any], trl_python: Path, folder: Path) -> dict[str, Any]:
    """The result of a side, with the `memory_gib` that it took at most.

    Args:
        trl_python: of the environment with TRL.
        folder: for the request, the result and the process's output.

    Raises:
        BenchmarkError: the process failed.
    """
    side = request["side"]
    module, python = ("trl_side", str(trl_python)) if side == TRL else ("our_side", sys.executable)
    stem = folder / f"{side}-{request['seed']}"
    files = [stem.with_name(f"{stem.name}-{kind}.json") for kind in ("request", "result")]
    files[0].write_text(json.dumps(request))
    command = [python, "-m", f"release.benchmarks.end_to_end.{module}", *map(str, files)]
    with open(stem.with_name(f"{stem.name}.log"), "w") as log:
        process = subprocess.Popen(command, cwd=REPOSITORY, env=_environment(), stdout=log, stderr=subprocess.STDOUT)
        with Memory(process.pid) as memory:
            status = process.wait()
    if status:
        raise BenchmarkError(f"{side}'s process ended with status {status}; {log.name} says why.")
    return json.loads(files[1].read_text()) | {"memory_gib": round(memory.peak / 2**30, 2)}


def _environment() -> dict[str, str]:
    path = os.pathsep.join(filter(None, [str(REPOSITORY), os.environ.get("PYTHONPATH")]))
    threads = {"OMP_NUM_THREADS": str(num_cores()), "TOKENIZERS_PARALLELISM": "false"}
    quiet = {"HF_HUB_OFFLINE": "1", "TRL_EXPERIMENTAL_SILENCE": "1"}
    return {**os.environ, **threads, **quiet, "PYTHONPATH": path}


class Memory:
    """The largest sum of the proportional set sizes of a process and its descendants, in bytes; Linux only."""

    def __init__(self, pid: int) -> None:
        self.peak = 0
        self._pid, self._done = pid, threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Memory:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._done.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._done.wait(LOOK_S):
            self.peak = max(self.peak, sum(map(_set_size, _family(self._pid))))


def _family(pid: int) -> list[int]:
    """A process and its descendants, as far as they live."""
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        children = [int(child) for task in tasks for child in (task / "children").read_text().split()]
    except OSError:
        return []
    return [pid, *(member for child in children for member in _family(child))]


def _set_size(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    except OSError:
        return 0
    return 1024 * sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
