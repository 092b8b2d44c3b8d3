"""Intervals by the bootstrap: pure functions of arrays.

The bootstrap resamples questions, each with all of its samples. A question's samples were drawn with different seeds,
so the interval covers both the choice of questions and the seeds. Resampling within a drawn question would count the
seeds' part twice (Davison and Hinkley 1997, section 3.8) and would spoil pass@k: if one of 5 samples is right, 5 draws
with replacement miss it every third time.

Intervals are expanded percentiles (Hesterberg 2015, "What Teachers Should Know About the Bootstrap", section 4.3.1):
plain ones are too narrow for few values, a 95 % interval of five holds the truth in 85 % of cases.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.stats import norm, t

NUM_RESAMPLES = 10_000
LEVEL = 0.95
#: Values whose relative difference is smaller count as equal, since differences of means are rounded.
_ROUNDING = 1e-12
#: Entries of the matrix of counts that are in memory at once.
_MAX_ENTRIES = 1 << 24


class Kind(enum.StrEnum):
    """How an interval came about.

    BOOTSTRAP: a regular interval. ALL_EQUAL: every question has the same value, and so has every resample: the interval
    has no width, which does not mean that there is no error. ONE_QUESTION: nothing can be resampled. NO_QUESTION: there
    is not even a value.
    """

    BOOTSTRAP = "bootstrap"
    ALL_EQUAL = "all_equal"
    ONE_QUESTION = "one_question"
    NO_QUESTION = "no_question"


@dataclass(frozen=True, slots=True)
class Estimate:
    """A mean over questions with its interval (expanded percentiles of the bootstrap distribution, level `LEVEL`).

    Attributes:
        value: the mean; None without a question.
        low, high: None where there is no interval (one question, or none).
        num_questions: the number of questions in the mean.
        seed_std: standard deviation of the mean between seeds (sample 0 of every question, sample 1, ...), ddof = 1;
            None with one sample, or for a metric that is not a mean over samples (pass@k, k > 1).
    """

    value: float | None
    low: float | None
    high: float | None
    kind: Kind
    num_questions: int
    seed_std: float | None = None


def estimate_all(
    metrics: Mapping[str, np.ndarray], seed: int = 0, num_resamples: int = NUM_RESAMPLES
) -> dict[str, Estimate]:
    """The mean over questions of every metric, with its bootstrap interval.

    Args:
        metrics: name -> [Q] one value a question, or [Q, S] one a sample; each question counts by the mean of its
            samples. Q may differ between metrics.
        seed: of the resampling: the same values give the same intervals.
    """
    of_questions = {name: by_question(values) for name, values in metrics.items()}
    kinds = {name: _kind(values) for name, values in of_questions.items()}
    bounds = {name: _degenerate_bounds(of_questions[name], kind) for name, kind in kinds.items()}
    for n in {len(of_questions[name]) for name, kind in kinds.items() if kind is Kind.BOOTSTRAP}:
        names = [name for name, kind in kinds.items() if kind is Kind.BOOTSTRAP and len(of_questions[name]) == n]
        columns = np.stack([of_questions[name] for name in names], axis=1)
        bounds |= dict(zip(names, _intervals(columns, seed, num_resamples), strict=True))
    return {
        name: Estimate(
            value=float(values.mean()) if len(values) else None,
            low=bounds[name][0],
            high=bounds[name][1],
            kind=kinds[name],
            num_questions=len(values),
            seed_std=_seed_std(np.asarray(metrics[name])),
        )
        for name, values in of_questions.items()
    }


def paired_differences(
    first: Mapping[str, np.ndarray], second: Mapping[str, np.ndarray], seed: int = 0
) -> dict[str, Estimate]:
    """The mean of `second - first` of every metric that both have, with its interval.

    Args:
        first, second: name -> [Q] or [Q, S], with the same questions in the same order; S may differ.

    Raises:
        ValueError: a metric has different numbers of questions.
    """
    shared = [name for name in first if name in second]
    for name in shared:
        if len(first[name]) != len(second[name]):
            raise ValueError(f"{name}: {len(first[name])} and {len(second[name])} questions cannot be paired.")
    return estimate_all({name: by_question(second[name]) - by_question(first[name]) for name in shared}, seed)


def average_over_tasks(tasks: Sequence[np.ndarray], seed: int = 0, num_resamples: int = NUM_RESAMPLES) -> Estimate:
    """The unweighted mean of the means of several tasks, with its interval: questions are resampled within each task.

    Of one task it is the estimate of `estimate_all`.

    Args:
        tasks: [Q] or [Q, S] for each task, as in `estimate_all`; Q may differ.
    """
    columns = [by_question(values) for values in tasks]
    kind = _kind_of_average([_kind(values) for values in columns])
    value = None if kind is Kind.NO_QUESTION else float(np.mean([values.mean() for values in columns]))
    low = high = value if kind is Kind.ALL_EQUAL else None
    if kind is Kind.BOOTSTRAP:
        low, high = _interval_of_average(columns, seed, num_resamples)
    seed_std = None if kind is Kind.NO_QUESTION else _seed_std_of_average(tasks)
    return Estimate(value, low, high, kind, sum(map(len, columns)), seed_std)


def by_question(values: np.ndarray) -> np.ndarray:
    """[Q], the mean over the samples of each question; of [Q] or [Q, S]."""
    values = np.asarray(values, dtype=np.float64)
    return values if values.ndim == 1 else values.mean(axis=1)


def _kind(values: np.ndarray) -> Kind:
    if len(values) < 2:
        return Kind.ONE_QUESTION if len(values) else Kind.NO_QUESTION
    return Kind.ALL_EQUAL if np.ptp(values) <= _ROUNDING * np.abs(values).max() else Kind.BOOTSTRAP


def _degenerate_bounds(values: np.ndarray, kind: Kind) -> tuple[float | None, float | None]:
    return (float(values.mean()),) * 2 if kind is Kind.ALL_EQUAL else (None, None)


def tail(n: int) -> float:
    """The share of resamples of n values that lies beyond each bound of an interval of level `LEVEL`.

    Phi(-t sqrt(n / (n - 1))), where t is the quantile of Student's distribution with n - 1 degrees of freedom.
    """
    return float(norm.cdf(-t.ppf((1 + LEVEL) / 2, n - 1) * np.sqrt(n / (n - 1))))


def _intervals(columns: np.ndarray, seed: int, num_resamples: int) -> list[tuple[float, float]]:
    """Percentiles of the means of Q rows of [Q, C] drawn with replacement; one interval a column."""
    center, n = columns.mean(axis=0), len(columns)
    means = _resampled_means(columns - center, np.random.default_rng(seed), num_resamples)
    bounds = center + np.quantile(means, [tail(n), 1 - tail(n)], axis=0)
    # A mean lies within the range of the values; this undoes rounding beyond it (a share of -1e-17).
    low, high = np.clip(bounds, columns.min(axis=0), columns.max(axis=0))
    return list(zip(low.tolist(), high.tolist(), strict=True))


def _resampled_means(centered: np.ndarray, rng: np.random.Generator, num_resamples: int) -> np.ndarray:
    """[R, C] means of Q rows of [Q, C] drawn with replacement.

    Args:
        centered: relative to the mean: rounding in a sum of large, nearly equal numbers would lose their differences.
    """
    n = len(centered)
    block = max(1, _MAX_ENTRIES // n)
    means = []
    for begin in range(0, num_resamples, block):
        counts = rng.multinomial(n, np.full(n, 1 / n), size=min(block, num_resamples - begin))
        means.append(counts @ centered / n)
    return np.concatenate(means)


def _kind_of_average(kinds: Sequence[Kind]) -> Kind:
    for kind in (Kind.NO_QUESTION, Kind.ONE_QUESTION, Kind.BOOTSTRAP):
        if kind in kinds or not kinds:
            return kind
    return Kind.ALL_EQUAL


def _interval_of_average(columns: Sequence[np.ndarray], seed: int, num_resamples: int) -> tuple[float, float]:
    rng = np.random.default_rng(seed)
    deviations = [_resampled_means((c - c.mean())[:, None], rng, num_resamples)[:, 0] for c in columns]
    share = _tail_of_average(columns)
    center = np.mean([c.mean() for c in columns])
    bounds = center + np.quantile(np.mean(deviations, axis=0), [share, 1 - share])
    low, high = np.clip(bounds, np.mean([c.min() for c in columns]), np.mean([c.max() for c in columns]))
    return float(low), float(high)


def _tail_of_average(columns: Sequence[np.ndarray]) -> float:
    """`tail` for a mean of means: the degrees of freedom are those of Welch and Satterthwaite.

    With v = s^2 / n of each task, s^2 the unbiased variance: df = (sum v)^2 / sum(v^2 / (n - 1)), and the standard
    deviation of the bootstrap is too small by the root of sum v / sum(v (n - 1) / n).
    """
    sizes = np.array([len(c) for c in columns])
    variances = np.array([c.var(ddof=1) for c in columns]) / sizes
    freedom = variances.sum() ** 2 / (variances**2 / (sizes - 1)).sum()
    widening = np.sqrt(variances.sum() / (variances * (sizes - 1) / sizes).sum())
    return float(norm.cdf(-t.ppf((1 + LEVEL) / 2, freedom) * widening))


def _seed_std_of_average(tasks: Sequence[np.ndarray]) -> float | None:
    if any(_seed_std(np.asarray(values)) is None for values in tasks) or len({v.shape[1] for v in tasks}) > 1:
        return None
    return float(np.mean([values.mean(axis=0) for values in tasks], axis=0).std(ddof=1))


def _seed_std(values: np.ndarray) -> float | None:
    if values.ndim == 1 or values.shape[1] < 2 or not len(values):
        return None
    return float(values.mean(axis=0).std(ddof=1))
