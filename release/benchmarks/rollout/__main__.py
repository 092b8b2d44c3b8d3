"""The benchmarks of the rollout engine: one command, a table, and a JSON file.

    python -m release.benchmarks.rollout --json rollout.json --quick     # under ten minutes on two cores
    python -m release.benchmarks.rollout --json rollout.json             # about two hours
    python -m release.benchmarks.rollout --json rollout.json --only raw_vllm_ratio,entropy_overhead

Every figure is a ratio of two sides that were measured in turn on this machine. The file is written after every
benchmark. The exit status is 1 if one failed; a failed one has no number, and its detail says why.
"""

from __future__ import annotations

import os

# Before torch starts its threads: on few cores, threads that wait must not spin in the others' way.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import sys

from release.benchmarks.common import runner
from release.benchmarks.common.runner import Benchmark

BENCHMARKS = (
    Benchmark("rollout.raw_vllm:raw_vllm", ("raw_vllm_ratio",)),
    Benchmark("rollout.forks:forks", ("fork_cached_fraction", "fork_cost_ratio")),
    Benchmark("rollout.entropy_probe:max_error", ("entropy_max_error",)),
    Benchmark("rollout.entropy_probe:overhead", ("entropy_overhead", "entropy_overhead_all")),
    Benchmark("rollout.lockstep:instant", ("lockstep_ratio_instant",)),
    Benchmark("rollout.lockstep:longtail", ("lockstep_ratio_longtail", "lockstep_ratio_longtail_nologprobs")),
    Benchmark("rollout.critical_path:critical_path", ("critical_path_ratio",)),
    Benchmark("rollout.weight_sync:weight_sync", ("weight_sync_ratio",)),
    Benchmark("rollout.recording:recording", ("record_overhead", "trace_overhead")),
    Benchmark("rollout.recording:page", ("tree_page_s",)),
    Benchmark("rollout.scaling:scaling", ("scaling_4", "driver_ms_per_question")),
    Benchmark("rollout.weight_lag:weight_lag", ("lag1_speedup",), full_only=True),
)
#: What each figure should reach.
TARGETS = {
    "raw_vllm_ratio": ">= 0.95",
    "lockstep_ratio_longtail": ">= 1.8",
    "lockstep_ratio_longtail_nologprobs": "reported",
    "lockstep_ratio_instant": ">= 1.0",
    "critical_path_ratio": "<= 1.15",
    "fork_cached_fraction": ">= 0.95",
    "fork_cost_ratio": "<= 0.6",
    "entropy_overhead": "<= 0.03",
    "entropy_overhead_all": "reported",
    "entropy_max_error": "<= 1e-4",
    "weight_sync_ratio": "<= 2",
    "record_overhead": "<= 0.02",
    "trace_overhead": "<= 0.02",
    "tree_page_s": "< 2",
    "scaling_4": ">= 0.9",
    "driver_ms_per_question": "< 5",
    "lag1_speedup": ">= 1.3",
}


def main(arguments: list[str] | None = None) -> int:
    return runner.main("rollout", BENCHMARKS, TARGETS, __doc__, arguments)


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    sys.exit(main())
