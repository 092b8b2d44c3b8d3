"""The variance of a gradient estimate, from a sample of it: pure functions of arrays.

`n` batches gave the gradients g_1 .. g_n, each an independent estimate of the same mean. With G_ij = g_i . g_j
the mean of G_ij over pairs of different batches is an unbiased estimate of the mean gradient's squared norm ("signal"),
and what is left of the mean of G_ii is one of the trace of the covariance ("variance").
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

NUM_RESAMPLES, LEVEL = 10_000, 0.95
#: value, lower and upper end; the ends are NaN where there is no interval.
Interval = tuple[float, float, float]


@dataclass(frozen=True, slots=True)
class CountSketch:
    """A fixed random projection from d numbers to k, whose inner products are unbiased estimates of the original ones.

    Attributes:
        buckets: [d] int, in [0, k).
        signs: [d], -1 or 1.
    """

    buckets: np.ndarray
    signs: np.ndarray
    size: int

    @classmethod
    def make(cls, dimension: int, size: int, seed: int = 0) -> CountSketch:
        rng = np.random.default_rng(seed)
        signs = rng.integers(2, size=dimension, dtype=np.int8) * 2 - 1
        return cls(rng.integers(size, size=dimension), signs, size)

    def __call__(self, vector: np.ndarray) -> np.ndarray:
        """[d] -> [k]."""
        return np.bincount(self.buckets, weights=vector * self.signs, minlength=self.size)


@dataclass(frozen=True, slots=True)
class Sample:
    """The gradients of an arm's batches, as far as they are kept.

    Attributes:
        calls: [n], tool calls that each batch executed.
        squared_norms: [n], exact.
        squared_norm_of_sum: of the sum of all n gradients, exact.
        sketches: [n, k].
        reference_dots: [n], the inner products with the reference's mean gradient, exact; NaN without a reference.
    """

    calls: np.ndarray
    squared_norms: np.ndarray
    squared_norm_of_sum: float
    sketches: np.ndarray
    reference_dots: np.ndarray

    @property
    def signal(self) -> float:
        """Unbiased estimate of the squared norm of the mean gradient; it may be negative. NaN with one batch."""
        n = len(self.calls)
        if n < 2:
            return float("nan")
        return (self.squared_norm_of_sum - float(self.squared_norms.sum())) / (n * (n - 1))

    @property
    def variance(self) -> float:
        """Unbiased estimate of the trace of the covariance of one batch's gradient."""
        return float(self.squared_norms.mean()) - self.signal


@dataclass(frozen=True, slots=True)
class Estimates:
    """Figures of one arm, each with its bootstrap distribution.

    All are arrays of [1 + resamples], of the sample itself first: calls a batch; variance, |mean|^2; the inner product
    with the reference's mean.
    """

    calls: np.ndarray
    variance: np.ndarray
    signal: np.ndarray
    reference_dot: np.ndarray

    @property
    def variance_times_calls(self) -> np.ndarray:
        """The variance of the estimate that one call buys: batches of any size compare."""
        return self.variance * self.calls

    @property
    def signal_to_noise(self) -> np.ndarray:
        """|mean|^2 / tr(Cov) of one batch."""
        return self.signal / self.variance

    @property
    def calls_to_signal(self) -> np.ndarray:
        """Calls of a batch whose signal is as large as its noise; infinite where no signal is seen."""
        return np.where(self.signal > 0, self.variance_times_calls / np.maximum(self.signal, 1e-300), np.inf)

    def cosine(self, reference_signal: float) -> np.ndarray:
        """Of the mean gradient and the reference's mean; NaN where no signal is seen.

        Args:
            reference_signal: |mean|^2 of the reference, whose batches are none of the arm's.
        """
        if reference_signal <= 0:
            return np.full_like(self.signal, np.nan)
        norms = np.sqrt(np.where(self.signal > 0, self.signal, np.nan) * reference_signal)
        return self.reference_dot / norms


def estimates(sample: Sample, seed: int = 0, num_resamples: int = NUM_RESAMPLES) -> Estimates:
    """The figures of a sample, and of samples of n batches that are drawn from it.

    A batch that was drawn twice makes no pair with itself, so that the resampled signals have the right mean. Their
    inner products are those of the sketches, moved to where the exact signal is. Arms with as many batches are drawn
    alike: their ratios are paired, batch by batch.

    Raises:
        ValueError: there are fewer than two batches.
    """
    n = len(sample.calls)
    if n < 2:
        raise ValueError(f"{n} batches have no variance; at least two are needed.")
    drawn = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=num_resamples)
    counts = np.concatenate([np.ones((1, n), dtype=drawn.dtype), drawn]).astype(float)
    products = sample.sketches @ sample.sketches.T
    np.fill_diagonal(products, 0.0)
    pairs = n**2 - (counts**2).sum(1)
    # A sample of one batch alone, drawn n times, has no pair.
    signal = np.einsum("ri,ij,rj->r", counts, products, counts, optimize=True) / np.where(pairs > 0, pairs, np.nan)
    signal += sample.signal - signal[0]
    return Estimates(
        calls=counts @ sample.calls / n,
        variance=counts @ sample.squared_norms / n - signal,
        signal=signal,
        reference_dot=counts @ sample.reference_dots / n,
    )


def interval(values: np.ndarray) -> Interval:
    """Of [1 + resamples], the sample itself first: its value, and percentiles of the others."""
    resampled = values[1:][~np.isnan(values[1:])]
    if not len(resampled):
        return float(values[0]), float("nan"), float("nan")
    # Of neighbours: between a number and infinity there is none.
    low, high = np.quantile(resampled, ((1 - LEVEL) / 2, (1 + LEVEL) / 2), method="nearest")
    return float(values[0]), float(low), float(high)
