"""Runs the benchmarks of the learner: one command, a table, and a JSON file.

    python -m release.benchmarks.learner --json learner.json --quick     # under ten minutes on two cores
    python -m release.benchmarks.learner --json learner.json             # about an hour
    python -m release.benchmarks.learner --json learner.json --only speedup_packed_2.5,grad_rel_error

Speeds are ratios between sides that run in turn on this machine. The file is written after every benchmark. A failed
benchmark has no number, its detail says why, and the exit status is 1.
"""

from __future__ import annotations

import os
import sys

from release.benchmarks.common import bench
from release.benchmarks.common.bench import Benchmark
from release.benchmarks.learner import tree_speedup

#: Sum of the trajectories' lengths / unique tokens -> the target of the speedup over packing, 0.85 times this ratio.
TARGETS = {1.0: ">= 0.97", 1.5: ">= 1.275", 2.5: ">= 2.125", 5.0: ">= 4.25"}
BENCHMARKS = (
    Benchmark(tree_speedup.gradients, {"grad_rel_error": "<= 1e-5"}),
    *(Benchmark(tree_speedup.speedup, {f"speedup_packed_{r}": target}, (r,)) for r, target in TARGETS.items()),
    *(Benchmark(tree_speedup.speedup, {f"speedup_states_{r}": "reported"}, (r, "states")) for r in (2.5, 5.0)),
)


def main(arguments: list[str] | None = None) -> int:
    return bench.main("learner", BENCHMARKS, __doc__, arguments)


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    sys.exit(main())
