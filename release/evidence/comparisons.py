"""Tests of the differences between arms, paired by seed and corrected for their number: pure functions of figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import ttest_1samp

Figures = Mapping[str, Mapping[int, Mapping[str, float]]]


@dataclass(frozen=True, slots=True)
class Comparison:
    """The differences of an arm to another one.

    Attributes:
        differences: [seeds], over the seeds for which both arms have the figure.
        p: of a paired t test, two-sided; None below `min_seeds` seeds.
        corrected: p after Holm's correction for all comparisons of the family that have one.
    """

    arm: str
    other: str
    differences: np.ndarray
    p: float | None
    corrected: float | None


def compare(found: Figures, pairs: Sequence[tuple[str, str]], figure: str, min_seeds: int) -> list[Comparison]:
    """A family of comparisons.

    Args:
        found: arm -> seed -> figures (`study_figures.figures`).
        pairs: (arm, the other arm).
    """
    differences = [paired(found, arm, other, figure) for arm, other in pairs]
    ps = [paired_p(values) if len(values) >= min_seeds else None for values in differences]
    corrected = iter(holm([p for p in ps if p is not None]))
    return [
        Comparison(arm, other, values, p, None if p is None else next(corrected))
        for (arm, other), values, p in zip(pairs, differences, ps, strict=True)
    ]


def paired(found: Figures, arm: str, other: str, figure: str) -> np.ndarray:
    """[seeds]: the arm's figure less the other arm's, over the seeds for which both have it."""
    own, base = (
        {seed: run[figure] for seed, run in found.get(name, {}).items() if not np.isnan(run[figure])}
        for name in (arm, other)
    )
    return np.array([own[seed] - base[seed] for seed in sorted(own.keys() & base.keys())])


def paired_p(differences: np.ndarray) -> float:
    """The two-sided p of Student's t for a mean of 0. Args: differences [n], n >= 2."""
    if differences.std(ddof=1) <= 1e-12 * np.abs(differences).max():
        return float(differences.mean() == 0)
    return float(ttest_1samp(differences, 0).pvalue)


def holm(ps: Sequence[float]) -> list[float]:
    """The p of m tests, corrected by Holm: the i-th smallest times m + 1 - i, at least the one before, at most 1."""
    corrected, largest = [0.0] * len(ps), 0.0
    for rank, place in enumerate(sorted(range(len(ps)), key=ps.__getitem__)):
        largest = max(largest, min((len(ps) - rank) * ps[place], 1.0))
        corrected[place] = largest
    return corrected
