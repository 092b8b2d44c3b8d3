"""A study's learning curves: accuracy against updates and against executed tool calls, one line an arm.

Lines are means over seeds. Bands are 95 % intervals of the mean over seeds, as in the tables; an arm with fewer than
`MIN_SEEDS` seeds has none. Rows without an accuracy are of iterations without an evaluation, and are left
out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from release.evidence.study_table import MIN_SEEDS
from rllib_arpo.core.intervals import estimate_all

NUM_POINTS = 101
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


def band(values: np.ndarray) -> tuple[list[float], list[float]]:
    """The interval of the mean over rows, [seeds, p] -> its lower and upper ends, p each."""
    estimates = estimate_all({str(point): column for point, column in enumerate(values.T)}).values()
    return [estimate.low for estimate in estimates], [estimate.high for estimate in estimates]


def draw(rows: Sequence[Mapping], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, len(AXES), figsize=(11, 4), sharey=True, layout="constrained")
    for panel, (column, label) in zip(panels, AXES.items(), strict=True):
        for arm, (at, values) in sorted(curves(rows, column).items()):
            (line,) = panel.plot(at, values.mean(0), label=f"{arm} (n = {len(values)})")
            if len(values) >= MIN_SEEDS:
                panel.fill_between(at, *band(values), color=line.get_color(), alpha=0.12, linewidth=0)
        panel.set_xlabel(label)
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("accuracy on held-out questions")
    panels[0].legend(fontsize=8)
    figure.savefig(path, dpi=110)
