"""Computes the figures of a study's runs and tests differences between arms: pure functions of their rows.

Between evaluations the accuracy is interpolated linearly. Runs are compared up to a number of calls that the study
sets; a run with fewer calls has no such figure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import ttest_1samp

from release.evidence.study_rows import LEARNER_METRICS, ROLLOUT_METRICS, Row
from rllib_arpo.core.intervals import estimate_all

NUM_POINTS = 101
CALLS, UPDATES = "tool_calls", "iteration"
#: Figures: calls and CPU seconds up to the last update of "mean over updates". Some runs have more updates.
CALLS_OF_UPDATES, CPU_OF_UPDATES = "calls up to there", "CPU seconds up to there"
#: Name of a run's total in tables -> its column.
COSTS = {
    "calls": CALLS,
    "generated tokens": "generated_tokens",
    "computed tokens": "computed_tokens",
    "seconds": "seconds",
    "CPU seconds": "cpu_seconds",
}
#: Arm -> seed -> figure -> its value; and `START_MODEL`, a text or None.
Figures = Mapping[str, Mapping[int, Mapping[str, Any]]]
START_MODEL = "start_model"
MEAN_OVER_UPDATES = "mean over updates"
#: Metrics of an iteration; a run has their means.
MEANS = (*ROLLOUT_METRICS, *LEARNER_METRICS)


@dataclass(frozen=True, slots=True)
class Run:
    """All rows of an arm and seed in the order of their iterations. The first and the last have an accuracy."""

    arm: str
    seed: int
    rows: tuple[Row, ...]

    @property
    def evaluated(self) -> list[Row]:
        return [row for row in self.rows if row["accuracy"] is not None]

    def column(self, name: str) -> list[float]:
        """The column's values in the rows with an accuracy."""
        return [row[name] for row in self.evaluated]

    @property
    def start_model(self) -> str | None:
        """The hash of its weights; None if the row does not say."""
        return self.rows[0][START_MODEL]

    @property
    def calls(self) -> int:
        """Tool calls that the whole run executed."""
        return self.rows[-1][CALLS]


def finished_runs(rows: Iterable[Row]) -> tuple[list[Run], list[str]]:
    """The runs that reached their last iteration, and the names of the others.

    If rows do not have their run's last iteration, all runs of the study have the same length.

    Raises:
        ValueError: a run lacks its calls or its first or last accuracy, or only some have their start model, or the
            runs of a seed, which are compared in pairs, did not begin with the same one.
    """
    by_run: dict[tuple[str, int], list[Row]] = {}
    for row in sorted(rows, key=lambda row: row["iteration"]):
        by_run.setdefault((row["arm"], row["seed"]), []).append(row)
    longest = max((run[-1]["iteration"] for run in by_run.values()), default=0)
    finished, others = [], []
    for (arm, seed), run in sorted(by_run.items()):
        last = run[0]["last_iteration"]
        if run[-1]["iteration"] == (longest if last is None else last):
            finished.append(Run(arm, seed, tuple(run)))
        else:
            others.append(f"{arm}, seed {seed}")
    first: dict[int, Run] = {}
    for run in finished:
        if None in (run.rows[0]["accuracy"], run.rows[-1]["accuracy"], *(row[CALLS] for row in run.rows)):
            raise ValueError(f"{run.arm}, seed {run.seed}: has no {CALLS}, or no first or last accuracy.")
        one = first.setdefault(run.seed, run)
        # A sampled accuracy may differ before training; rows of earlier studies do not name the model.
        begun = [other.start_model or f"the accuracy {other.rows[0]['accuracy']}" for other in (run, one)]
        if begun[0] != begun[1]:
            raise ValueError(
                f"seed {run.seed}: {run.arm} begins with {begun[0]}, {one.arm} with {begun[1]}: they start from "
                "different models (other machines train other ones)."
            )
    if len({run.start_model is None for run in finished}) > 1:
        unnamed = next(run for run in finished if run.start_model is None)
        raise ValueError(f"{unnamed.arm}, seed {unnamed.seed}: does not say its start model, and other runs do.")
    return finished, others


def accuracies_at(run: Run, column: str, values: np.ndarray) -> np.ndarray:
    """[p] -> [p], with linear interpolation between evaluations."""
    return np.interp(values, run.column(column), run.column("accuracy"))


def mean_accuracy(run: Run, column: str, last: float) -> float:
    """The mean accuracy while `column` goes from 0 to `last`."""
    return float(accuracies_at(run, column, np.linspace(0, last, NUM_POINTS)).mean())


def cost_to_reach(run: Run, accuracy: float, column: str = CALLS) -> float | None:
    """The total in `column` when the run first had this accuracy; None if it never had it (censored at its end)."""
    totals, accuracies = run.column(column), run.column("accuracy")
    for i, reached in enumerate(accuracies):
        if reached >= accuracy:
            if i == 0:
                return float(totals[0])
            share = (accuracy - accuracies[i - 1]) / (reached - accuracies[i - 1])
            return float(totals[i - 1] + share * (totals[i] - totals[i - 1]))
    return None


def figures(runs: Sequence[Run], calls: int) -> dict[str, dict[int, dict[str, Any]]]:
    """Arm -> seed -> figures. NaN are means over no iteration, and figures at `calls` of a run with fewer calls."""
    last_update = min(run.rows[-1][UPDATES] for run in runs)
    found: dict[str, dict[int, dict[str, Any]]] = {}
    for run in runs:
        last, lasts = run.rows[-1], run.calls >= calls
        found.setdefault(run.arm, {})[run.seed] = {
            START_MODEL: run.start_model,
            "accuracy at equal updates": float(accuracies_at(run, UPDATES, np.array(last_update))),
            MEAN_OVER_UPDATES: mean_accuracy(run, UPDATES, last_update),
            CALLS_OF_UPDATES: float(run.rows[last_update][CALLS]),
            CPU_OF_UPDATES: _or_nan(run.rows[last_update][COSTS["CPU seconds"]]),
            "mean over calls": mean_accuracy(run, CALLS, calls) if lasts else np.nan,
            "accuracy at equal calls": float(accuracies_at(run, CALLS, np.array(calls))) if lasts else np.nan,
            **{shown: _or_nan(last[name]) for shown, name in COSTS.items()},
            **{name: _mean(row[name] for row in run.rows) for name in MEANS},
        }
    return found


def start_model_means(values: np.ndarray, start_models: Sequence[str | None]) -> np.ndarray:
    """[runs, ...] -> the mean of each start model's runs, in order; the values themselves of a single start model.

    Runs from one start model share its luck. A t interval over these means is exact for seeds within start models, if
    each has as many; it also covers what another start model would change.
    """
    names = dict.fromkeys(start_models)
    if len(names) < 2:
        return values
    return np.array([values[[name == own for own in start_models]].mean(0) for name in names])


def _or_nan(value: float | None) -> float:
    return float("nan") if value is None else value


def _mean(values: Iterable[float | None]) -> float:
    found = [value for value in values if value is not None]
    return float(np.mean(found)) if found else float("nan")


@dataclass(frozen=True, slots=True)
class Reach:
    """The cost that an arm needs for an accuracy: executed calls, tokens or seconds.

    Attributes:
        reached, runs: how many of how many runs reached the accuracy; the others are censored.
        median: the median cost, where a censored run costs more than any other; None if it is censored.
        horizon: the smallest total cost of a run of the arm or the baseline that never reached the accuracy, so every
            run is known up to there. Infinite if all runs reached it.
        restricted_mean: the mean of min(cost, horizon) over the arm's runs.
        pairs: the number of seeds that arm and baseline share, or of their start models (`start_model_means`).
        ratio: the restricted mean divided by the baseline's, over these pairs (`ratio_of_means`). None with fewer than
            two pairs, without costs, or if no run reached the accuracy. Censored runs pull it towards 1.
    """

    reached: int
    runs: int
    median: float | None
    horizon: float
    restricted_mean: float
    pairs: int
    ratio: tuple[float, float, float] | None


def reach(arm: Mapping[int, Run], baseline: Mapping[int, Run], accuracy: float, column: str = CALLS) -> Reach:
    """Args: `arm`, `baseline`: seed -> run; all runs have the total `column`."""
    costs, of_baseline = (
        {seed: cost_to_reach(run, accuracy, column) for seed, run in runs.items()} for runs in (arm, baseline)
    )
    never = [
        runs[s].rows[-1][column]
        for runs, found in ((arm, costs), (baseline, of_baseline))
        for s in found
        if found[s] is None
    ]
    horizon = min(never, default=np.inf)
    own, base = ({s: _restricted(c, horizon) for s, c in found.items()} for found in (costs, of_baseline))
    shared = sorted(own.keys() & base.keys())
    starts = [arm[s].start_model for s in shared]
    pairs = [start_model_means(np.array([found[s] for s in shared]), starts) for found in (own, base)]
    median = float(np.median([np.inf if c is None else c for c in costs.values()]))
    return Reach(
        reached=sum(c is not None for c in costs.values()),
        runs=len(costs),
        median=median if np.isfinite(median) else None,
        horizon=horizon,
        restricted_mean=float(np.mean(list(own.values()))),
        pairs=len(pairs[0]),
        # Costs that all end at the horizon would have the ratio 1.
        ratio=ratio_of_means(*pairs) if len(never) < len(costs) + len(of_baseline) else None,
    )


def _restricted(cost: float | None, horizon: float) -> float:
    return horizon if cost is None else min(cost, horizon)


def ratio_of_means(values: np.ndarray, others: np.ndarray) -> tuple[float, float, float] | None:
    """mean(values) / mean(others), both [n], with its 95 % interval; None with fewer than two pairs, or a mean of 0.

    The interval is Student's t interval for the logarithm of the ratio, to first order in the values: for the mean over
    pairs of values / mean(values) - others / mean(others).
    """
    if len(values) < 2 or not (values.mean() and others.mean()):
        return None
    ratio = float(values.mean() / others.mean())
    spread = estimate_all({"": values / values.mean() - others / others.mean()})[""]
    return ratio, ratio * float(np.exp(spread.low)), ratio * float(np.exp(spread.high))


@dataclass(frozen=True, slots=True)
class Comparison:
    """The differences between an arm and another one.

    Attributes:
        num_seeds: the number of seeds with the figure in both arms.
        differences: [seeds], for these seeds; their means, if they have several start models (`start_model_means`).
        p: the p of a two-sided paired t test; None with fewer than `min_values` differences.
        corrected: p after Holm's correction for all comparisons of the family that have a p.
    """

    arm: str
    other: str
    num_seeds: int
    differences: np.ndarray
    p: float | None
    corrected: float | None


def compare(found: Figures, pairs: Sequence[tuple[str, str]], figure: str, min_values: int) -> list[Comparison]:
    """Compares pairs of arms as a family.

    Args:
        found: arm -> seed -> figures, from `figures`.
        pairs: (arm, other arm).
    """
    counted = [paired(found, arm, other, figure) for arm, other in pairs]
    ps = [paired_p(values) if len(values) >= min_values else None for _, values in counted]
    corrected = iter(holm([p for p in ps if p is not None]))
    return [
        Comparison(arm, other, *found_of, p, None if p is None else next(corrected))
        for (arm, other), found_of, p in zip(pairs, counted, ps, strict=True)
    ]


def paired(found: Figures, arm: str, other: str, figure: str) -> tuple[int, np.ndarray]:
    """How many seeds have the figure in both arms; and the arm's figure minus the other's, see `start_model_means`."""
    own, base = (
        {seed: run[figure] for seed, run in found.get(name, {}).items() if not np.isnan(run[figure])}
        for name in (arm, other)
    )
    shared = sorted(own.keys() & base.keys())
    starts = [found[arm][seed].get(START_MODEL) for seed in shared]
    return len(shared), start_model_means(np.array([own[seed] - base[seed] for seed in shared]), starts)


def paired_p(differences: np.ndarray) -> float:
    """The two-sided p of Student's t test for a mean of 0. Args: `differences`: [n], n >= 2."""
    if differences.std(ddof=1) <= 1e-12 * np.abs(differences).max():
        return float(differences.mean() == 0)
    return float(ttest_1samp(differences, 0).pvalue)


def holm(ps: Sequence[float]) -> list[float]:
    """Holm's correction of m p values: the i-th smallest times m + 1 - i, but at least the previous one, at most 1."""
    corrected, largest = [0.0] * len(ps), 0.0
    for rank, index in enumerate(sorted(range(len(ps)), key=ps.__getitem__)):
        largest = max(largest, min((len(ps) - rank) * ps[index], 1.0))
        corrected[index] = largest
    return corrected
