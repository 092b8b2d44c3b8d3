"""Runs the benchmarks of the rollout engine: one command, a table, and a JSON file.

    python -m release.benchmarks.rollout --json rollout.json --quick     # under ten minutes on two cores
    python -m release.benchmarks.rollout --json rollout.json             # about an hour
    python -m release.benchmarks.rollout --json rollout.json --only raw_vllm_ratio,entropy_overhead

Every figure is a ratio between two sides that run in turn on this machine. The file is written after every benchmark. A
failed benchmark has no number, its detail says why, and the exit status is 1.
"""

from __future__ import annotations

import os

# Before torch starts its threads: on few cores, waiting threads must not spin, since others need the cores.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import sys

from release.benchmarks.common import bench
from release.benchmarks.common.bench import Benchmark
from release.benchmarks.rollout import entropy_probe, lockstep, raw_vllm, step_python

BENCHMARKS = (
    Benchmark(raw_vllm.raw_vllm, {"raw_vllm_ratio": ">= 0.95"}),
    Benchmark(step_python.step_python, {"step_python_ratio": "<= 1.10", "step_python_ratio_without_text": "reported"}),
    Benchmark(
        lockstep.longtail, {"lockstep_ratio_longtail": ">= 1.8", "lockstep_ratio_longtail_nologprobs": "reported"}
    ),
    Benchmark(entropy_probe.overhead, {"entropy_overhead": "<= 0.03", "entropy_overhead_all": "reported"}),
)


def main(arguments: list[str] | None = None) -> int:
    return bench.main("rollout", BENCHMARKS, __doc__, arguments)


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    sys.exit(main())
