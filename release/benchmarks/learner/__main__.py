"""The benchmarks of the learner: one command, a table, and a JSON file.

    python -m release.benchmarks.learner --json learner.json --quick     # under ten minutes on two cores
    python -m release.benchmarks.learner --json learner.json             # about an hour
    python -m release.benchmarks.learner --json learner.json --only speedup_packed_2.5,memory_padded_2.5

Speeds are ratios of sides that were measured in turn on this machine. The file is written after every benchmark. The
exit status is 1 if one failed; a failed one has no number, and its detail says why.
"""

from __future__ import annotations

import os
import sys

from release.benchmarks.common import runner
from release.benchmarks.common.runner import Benchmark

#: Sum of the trajectories' lengths / unique tokens.
RATIOS = (1.0, 1.5, 2.5, 5.0)
BENCHMARKS = (
    Benchmark("learner.tree_speedup:gradients", ("grad_rel_error",)),
    *(
        Benchmark(
            "learner.tree_speedup:speedup", (f"speedup_packed_{ratio}", f"speedup_padded_{ratio}"), arguments=(ratio,)
        )
        for ratio in RATIOS
    ),
    *(Benchmark("learner.tree_memory:memory", (f"memory_padded_{ratio}",), arguments=(ratio,)) for ratio in RATIOS),
    Benchmark("learner.tree_memory:head", ("head_memory_fraction",)),
    Benchmark("learner.mfu:mfu", ("mfu_fp32",), arguments=("float32",)),
    Benchmark("learner.mfu:mfu", ("mfu_bf16",), arguments=("bfloat16",)),
    Benchmark("learner.trl_speedup:speedup", ("speedup_trl_2.5",), full_only=True),
)
#: What each figure should reach. Against packing it is 0.85 of the ratio.
TARGETS = {
    "speedup_packed_1.0": ">= 0.97",
    "speedup_packed_1.5": ">= 1.275",
    "speedup_packed_2.5": ">= 2.125",
    "speedup_packed_5.0": ">= 4.25",
    "speedup_padded_1.0": "reported",
    "speedup_padded_1.5": ">= 1.7",
    "speedup_padded_2.5": ">= 2.8",
    "speedup_padded_5.0": ">= 4.5",
    "speedup_trl_2.5": ">= 3",
    "memory_padded_1.0": "reported",
    "memory_padded_1.5": "reported",
    "memory_padded_2.5": "<= 0.45",
    "memory_padded_5.0": "<= 0.30",
    "head_memory_fraction": "<= 0.2",
    "grad_rel_error": "<= 1e-5",
    "mfu_fp32": "reported",
    "mfu_bf16": "reported",
}


def main(arguments: list[str] | None = None) -> int:
    return runner.main("learner", BENCHMARKS, TARGETS, __doc__, arguments)


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    sys.exit(main())
