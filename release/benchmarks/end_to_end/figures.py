"""From the sides' results to figures: speeds, ratios over paired iterations with intervals, and the table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from release.benchmarks.common.bench import rounded
from release.benchmarks.end_to_end.task_file import ALGORITHMS, SIDES, TRL

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
NUM_RESAMPLES = 10_000

#: Side -> the results of its runs, in the order of the seeds.
Runs = Mapping[str, Sequence[Mapping[str, Any]]]


def figures(runs: Runs) -> dict[str, Any]:
    """Every figure of `TARGETS` with its detail; None with the reason where a side is missing."""
    results: dict[str, Any] = {}
    for side in SIDES:
        results |= _speed(side, runs[side]) if side in runs else _missing(PER_HOUR[side], side)
    for side in ALGORITHMS:
        for name, column in RATIOS.items():
            key, absent = f"{name}_{side}", [one for one in (TRL, side) if one not in runs]
            results |= _missing(key, absent[0]) if absent else _ratio(key, side, column, runs)
    return results


def _missing(key: str, side: str) -> dict[str, Any]:
    return {key: None, f"{key}_detail": {"skipped": f"there is no run of {side}"}}


def _speed(side: str, runs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Iterations per hour, and in the detail all else that is known of the side."""
    key, seconds = PER_HOUR[side], _column(runs, "seconds")
    detail = {
        "sides": ["seconds"],
        **{name: rounded(_column(runs, name), 3) for name in runs[0]["iterations"][0]},
        **{f"{name}_mean": float(np.mean(_column(runs, name))) for name in runs[0]["iterations"][0]},
        "warm_up_s": [run["iterations"][0]["seconds"] for run in runs],
        **{name: [run[name] for run in runs] for name in ("start_s", "memory_gib", "evaluations")},
        **{name: runs[0][name] for name in ("versions", "threads", "setting")},
    }
    return {key: 3600 / float(np.mean(seconds)), f"{key}_detail": detail}


def _ratio(key: str, side: str, column: str, runs: Runs) -> dict[str, Any]:
    theirs, ours = (_column(runs[name], column) for name in (TRL, side))
    value, low, high = ratio_of_means(theirs, ours)
    return {
        key: value,
        f"{key}_detail": {
            "sides": [f"{TRL}_s", f"{side}_s"],
            f"{TRL}_s": rounded(theirs, 2),
            f"{side}_s": rounded(ours, 2),
            "interval": [low, high],
            "pairs": len(ours),
        },
    }


def _column(runs: Sequence[Mapping[str, Any]], name: str) -> list[float]:
    return [row[name] for run in runs for row in run["iterations"][WARM_UP:]]


def ratio_of_means(numerators: Sequence[float], denominators: Sequence[float]) -> tuple[float, float, float]:
    """mean / mean of paired values, with its 95 % interval: pairs are drawn with replacement.

    Raises:
        ValueError: the numbers of values differ.
    """
    pairs = np.array([*zip(numerators, denominators, strict=True)])
    drawn = np.random.default_rng(0).integers(len(pairs), size=(NUM_RESAMPLES, len(pairs)))
    sums = pairs[drawn].sum(axis=1)
    low, high = np.quantile(sums[:, 0] / sums[:, 1], (0.025, 0.975))
    return float(pairs[:, 0].mean() / pairs[:, 1].mean()), float(low), float(high)


def print_sides(results: Mapping[str, Any]) -> None:
    """A line a side, then the held-out accuracies of its first run."""
    columns = ("seconds", "sampling_s", "update_s", "sync_s", "generated_tokens", "tool_calls")
    print(f"\n{'mean of an iteration':22s}" + "".join(f"{name:>18s}" for name in columns) + f"{'memory_gib':>12s}")
    details = {side: results[f"{PER_HOUR[side]}_detail"] for side in SIDES if results[PER_HOUR[side]] is not None}
    for side, detail in details.items():
        means = "".join(f"{detail[f'{name}_mean']:18.1f}" for name in columns)
        print(f"{side:22s}{means}{max(detail['memory_gib']):12.1f}")
    print("\nheld-out accuracy after so many seconds of iterations")
    for side, detail in details.items():
        points = [f"{point['accuracy']:.3f} ({point['trained_s']:.0f})" for point in detail["evaluations"][0]]
        print(f"{side:22s}  {'  '.join(points)}")
