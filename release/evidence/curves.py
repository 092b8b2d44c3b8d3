"""Draws a study's learning curves: accuracy against updates and against executed tool calls, one line an arm.

    python -m release.evidence.curves release/evidence/results/trails-small.parquet --output docs/trails-small.png

Lines are means over seeds, bands are 95 % bootstrap intervals of the mean over seeds; an arm with one seed has none.
Rows without an accuracy are of iterations without an evaluation, and are left out.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

NUM_POINTS, NUM_RESAMPLES = 101, 2000
AXES = {"iteration": "updates", "tool_calls": "executed tool calls"}


def curves(rows: Sequence[Mapping], column: str) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Arm -> (values of `column` [p], accuracies [seeds, p]), between evaluations along straight lines."""
    runs: dict[str, dict[int, list[Mapping]]] = {}
    for row in sorted((row for row in rows if row["accuracy"] is not None), key=lambda row: row["iteration"]):
        runs.setdefault(row["arm"], {}).setdefault(row["seed"], []).append(row)
    found = {}
    for arm, by_seed in runs.items():
        at = np.linspace(0, min(run[-1][column] for run in by_seed.values()), NUM_POINTS)
        values = [np.interp(at, [r[column] for r in run], [r["accuracy"] for r in run]) for run in by_seed.values()]
        found[arm] = at, np.array(values)
    return found


def interval(values: np.ndarray, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """The 95 % interval of the mean over rows, [seeds, p] -> two of [p]."""
    drawn = np.random.default_rng(seed).integers(len(values), size=(NUM_RESAMPLES, len(values)))
    low, high = np.quantile(values[drawn].mean(1), (0.025, 0.975), axis=0)
    return low, high


def draw(rows: Sequence[Mapping], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, len(AXES), figsize=(11, 4), sharey=True, layout="constrained")
    for panel, (column, label) in zip(panels, AXES.items(), strict=True):
        for arm, (at, values) in sorted(curves(rows, column).items()):
            (line,) = panel.plot(at, values.mean(0), label=f"{arm} (n = {len(values)})")
            if len(values) > 1:
                panel.fill_between(at, *interval(values), color=line.get_color(), alpha=0.12, linewidth=0)
        panel.set_xlabel(label)
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("accuracy on held-out questions")
    panels[0].legend(fontsize=8)
    figure.savefig(path, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", type=Path, help="the study's .parquet file")
    parser.add_argument("--output", type=Path, required=True, help="a .png file")
    parser.add_argument("--arms", nargs="+", help="default: all")
    args = parser.parse_args()
    rows = pq.read_table(args.rows).to_pylist()
    draw([row for row in rows if args.arms is None or row["arm"] in args.arms], args.output)


if __name__ == "__main__":
    main()
