"""The benchmarks of the tools: one command, a table, and a JSON file.

    python -m release.benchmarks.tools --json tools.json --quick     # under ten minutes on two cores
    python -m release.benchmarks.tools --json tools.json             # 10,000 calls in a row, and larger samples
    python -m release.benchmarks.tools --json tools.json --only search_p50_ms

The file is written after every tool. The exit status is 1 if one failed; a failed one has no numbers, and its details
say why.
"""

from __future__ import annotations

import os
import sys

from release.benchmarks.common import runner
from release.benchmarks.common.runner import Benchmark

#: Module of this package -> its figures: what each should reach. The modules say what they are, and measure more.
TARGETS = {
    "python": {
        "python_warm_p50_ms": "< 40",
        "python_warm_p99_ms": "reported",
        "python_p99_over_p50_64": "< 10",
        "python_vs_cold_64": ">= 20",
        "attacks_tried": ">= 40",
        "attacks_succeeded": "0",
    },
    "search": {
        "search_build_s": "< 30",
        "search_p50_ms": "< 5",
        "search_recall_5": ">= 0.95",
        "cache_entries_lost": "0",
    },
    "browse": {
        "ssrf_tried": ">= 30",
        "ssrf_succeeded": "0",
        "browse_pages_wrong": "0",
    },
    "mathematics": {
        "math_p50_ms": "reported",
        "math_wrong": "0",
        "math_hostile_max_s": "< 2",
        "math_hostile_accepted": "0",
    },
}
BENCHMARKS = tuple(
    Benchmark("tools.figures:figures", tuple(targets), arguments=(module, tuple(targets)))
    for module, targets in TARGETS.items()
)


def main(arguments: list[str] | None = None) -> int:
    targets = {key: target for group in TARGETS.values() for key, target in group.items()}
    return runner.main("tools", BENCHMARKS, targets, __doc__, arguments)


if __name__ == "__main__":
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    sys.exit(main())
