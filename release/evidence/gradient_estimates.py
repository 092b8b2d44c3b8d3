"""The variance of a gradient estimate, from a sample of it: pure functions of arrays.

`n` batches gave the gradients g_1 .. g_n, each an independent estimate of the same mean. With G_ij = g_i . g_j
the mean of G_ij over pairs of different batches is an unbiased estimate of the mean gradient's squared norm ("signal"),
and what is left of the mean of G_ii is one of the trace of the covariance ("variance").
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

NUM_RESAMPLES, LEVEL = 10_000, 0.95


def sketch(vector: np.ndarray, size: int, seed: int = 0) -> np.ndarray:
    """[d] -> [size], a random projection fixed by the seed, whose inner products estimate the original ones unbiased.

    It adds up the numbers of each bucket with random signs (a count sketch).
    """
    rng = np.random.default_rng(seed)
    signs = rng.integers(2, size=len(vector), dtype=np.int8) * 2 - 1
    return np.bincount(rng.integers(size, size=len(vector)), weights=vector * signs, minlength=size)


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


def estimates(
    sample: Sample, reference_signal: float = float("nan"), num_resamples: int = NUM_RESAMPLES
) -> dict[str, np.ndarray]:
    """Figures of a sample, and of samples of n batches that are drawn from it.

    A batch that was drawn twice makes no pair with itself, so that the resampled signals have the right mean. Their
    inner products are those of the sketches, moved to where the exact signal is. Arms with as many batches are drawn
    alike: their ratios are paired, batch by batch.

    Args:
        reference_signal: of the reference, whose batches are none of the arm's.

    Returns:
        Arrays of [1 + resamples], of the sample itself first:
        "calls" of a batch; "variance"; "signal"; "signal_to_noise" of one batch; "calls_to_signal", the calls of a
        batch whose signal is as large as its noise, infinite where no signal is seen; "cosine" of the mean gradient and
        the reference's, NaN where no signal is seen.

    Raises:
        ValueError: there are fewer than two batches.
    """
    n = len(sample.calls)
    if n < 2:
        raise ValueError(f"{n} batches have no variance; at least two are needed.")
    drawn = np.random.default_rng(0).multinomial(n, np.full(n, 1 / n), size=num_resamples)
    counts = np.concatenate([np.ones((1, n), dtype=drawn.dtype), drawn]).astype(float)
    products = sample.sketches @ sample.sketches.T
    np.fill_diagonal(products, 0.0)
    pairs = n**2 - (counts**2).sum(1)
    # A sample of one batch alone, drawn n times, has no pair.
    signal = np.einsum("ri,ij,rj->r", counts, products, counts, optimize=True) / np.where(pairs > 0, pairs, np.nan)
    signal += sample.signal - signal[0]
    calls, variance = counts @ sample.calls / n, counts @ sample.squared_norms / n - signal
    seen = np.where(signal > 0, signal, np.nan)
    norms = np.sqrt(seen * (reference_signal if reference_signal > 0 else np.nan))
    return {
        "calls": calls,
        "variance": variance,
        "signal": signal,
        "signal_to_noise": signal / variance,
        "calls_to_signal": np.where(signal > 0, variance * calls / np.maximum(signal, 1e-300), np.inf),
        "cosine": counts @ sample.reference_dots / n / norms,
    }


def interval(values: np.ndarray) -> tuple[float, float, float]:
    """Of [1 + resamples], the sample itself first: its value, and percentiles of the others (NaN: there is none)."""
    resampled = values[1:][~np.isnan(values[1:])]
    if not len(resampled):
        return float(values[0]), float("nan"), float("nan")
    # Of neighbours: between a number and infinity there is none.
    low, high = np.quantile(resampled, ((1 - LEVEL) / 2, (1 + LEVEL) / 2), method="nearest")
    return float(values[0]), float(low), float(high)
