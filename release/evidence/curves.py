"""A study's learning curves: accuracy against updates and against executed tool calls, one line an arm.

Lines are means over seeds. Bands are 95 % intervals of the mean over seeds, as in the tables; an arm with fewer than
`MIN_SEEDS` seeds has none.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from release.evidence.study_figures import CALLS, NUM_POINTS, UPDATES, Run, accuracies_at
from release.evidence.study_table import MIN_SEEDS
from rllib_arpo.core.intervals import estimate_all

AXES = {UPDATES: "updates", CALLS: "executed tool calls"}


def curves(runs: Sequence[Run], column: str) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Arm -> (values of `column` [p], accuracies [seeds, p]), up to the end of its shortest run."""
    found = {}
    for arm in sorted({run.arm for run in runs}):
        own = [run for run in runs if run.arm == arm]
        at = np.linspace(0, min(run.column(column)[-1] for run in own), NUM_POINTS)
        found[arm] = at, np.array([accuracies_at(run, column, at) for run in own])
    return found


def draw(runs: Sequence[Run], path: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(1, len(AXES), figsize=(11, 4), sharey=True, layout="constrained")
    for panel, (column, label) in zip(panels, AXES.items(), strict=True):
        for arm, (at, values) in curves(runs, column).items():
            (line,) = panel.plot(at, values.mean(0), label=f"{arm} (n = {len(values)})")
            if len(values) >= MIN_SEEDS:
                means = estimate_all({str(point): column for point, column in enumerate(values.T)}).values()
                low, high = [mean.low for mean in means], [mean.high for mean in means]
                panel.fill_between(at, low, high, color=line.get_color(), alpha=0.12, linewidth=0)
        panel.set_xlabel(label)
        panel.grid(alpha=0.3)
    panels[0].set_ylabel("accuracy on held-out questions")
    panels[0].legend(fontsize=8)
    figure.savefig(path, dpi=110)
