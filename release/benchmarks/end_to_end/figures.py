"""From the sides' results to figures: speeds, and ratios over paired iterations with intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from release.benchmarks.common.bench import spread
from release.benchmarks.common.runner import missing
from release.benchmarks.end_to_end.task_file import ALGORITHMS, SIDES, TRL
from release.evidence.study_figures import ratio_of_means

#: Figure of a ratio -> column of an iteration.
RATIOS = {"speedup": "seconds", "sampling_speedup": "sampling_s", "update_speedup": "update_s"}
PER_HOUR = {side: f"iterations_per_hour_{side}" for side in SIDES}
TARGETS = {
    **{PER_HOUR[side]: "reported" for side in SIDES},
    **{f"{ratio}_{side}": "reported" for side in ALGORITHMS for ratio in RATIOS},
    **{f"speedup_{side}": ">= 6" for side in ALGORITHMS},
}
#: Iterations at the start of a run that do not count.
WARM_UP = 1

#: Side -> the results of its runs, in the order of the seeds.
Runs = Mapping[str, Sequence[Mapping[str, Any]]]


def figures(runs: Runs, reasons: Mapping[str, str]) -> dict[str, Any]:
    """Every figure of `TARGETS` with its detail; None with the reason where a side is missing.

    Args:
        reasons: side -> why it is missing, where that is not the command line's wish.
    """

    def missing_of(side: str, key: str) -> dict[str, Any]:
        return missing([key], skipped=reasons.get(side, f"there is no run of {side}"))

    results: dict[str, Any] = {}
    for side, key in PER_HOUR.items():
        results |= _speed(key, runs[side]) if side in runs else missing_of(side, key)
    for side in ALGORITHMS:
        absent = [one for one in (TRL, side) if one not in runs]
        for name, column in RATIOS.items():
            key = f"{name}_{side}"
            if absent:
                results |= missing_of(absent[0], key)
                continue
            theirs, ours = (_column(runs[one], column) for one in (TRL, side))
            value, low, high = ratio_of_means(np.array(theirs), np.array(ours)) or (theirs[0] / ours[0], None, None)
            detail = {f"{TRL}_s": spread(theirs), f"{side}_s": spread(ours), "interval": [low, high]}
            results |= {key: value, f"{key}_detail": detail}
    return results


def _speed(key: str, runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Iterations per hour, and in the detail all else that is known of the side."""
    columns = {name: _column(runs, name) for name in runs[0]["iterations"][0]}
    detail = {
        **{name: spread(values) for name, values in columns.items()},
        **{f"{name}_mean": float(np.mean(values)) for name, values in columns.items()},
        "warm_up_s": [run["iterations"][0]["seconds"] for run in runs],
        **{name: [run[name] for run in runs] for name in ("start_s", "evaluations")},
        **{name: runs[0][name] for name in ("versions", "threads", "setting")},
    }
    return {key: 3600 / float(np.mean(columns["seconds"])), f"{key}_detail": detail}


def _column(runs: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    return [row[name] for run in runs for row in run["iterations"][WARM_UP:]]
