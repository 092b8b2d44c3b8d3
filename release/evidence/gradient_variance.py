"""The table of how much the gradient of an update varies from batch to batch, arm by arm, at fixed weights.

    python -m release.evidence.gradient_variance --table release/evidence/results/variance/credits-small.parquet

The rows were sampled once, and `SAMPLED_BY` is the last commit that samples some. Each arm of a study sampled batches
with its own rollout from the cold-started model, with the same questions in all arms; the learner computed the gradient
of the arm's own loss, before clipping, and took no step. `reference` are batches of the study's baseline with the
questions in another order, four times as many: the other arms are compared with its mean gradient and its calls.

`n` batches gave the gradients g_1 .. g_n, each an independent estimate of the same mean. With G_ij = g_i . g_j
the mean of G_ij over pairs of different batches is an unbiased estimate of the mean gradient's squared norm ("signal"),
and what is left of the mean of G_ii is one of the trace of the covariance ("variance").
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

SAMPLED_BY = "d39b2bf0"
REFERENCE = "reference"
NUM_RESAMPLES, LEVEL = 10_000, 0.95


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


def samples_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, Sample]:
    """Arm -> its sample, in the order of the rows; arms with fewer than two batches are left out."""
    by_arm: dict[str, list[Mapping[str, Any]]] = {}
    for row in sorted(rows, key=lambda row: row["batch"]):
        by_arm.setdefault(row["arm"], []).append(row)
    return {
        arm: Sample(
            calls=np.array([row["tool_calls"] for row in of_arm], dtype=float),
            squared_norms=np.array([row["squared_norm"] for row in of_arm]),
            squared_norm_of_sum=of_arm[-1]["squared_norm_of_sum"],
            sketches=np.array([row["sketch"] for row in of_arm], dtype=float),
            reference_dots=np.array([row["reference_dot"] for row in of_arm], dtype=float),
        )
        for arm, of_arm in by_arm.items()
        if len(of_arm) > 1
    }


def table(rows: Sequence[Mapping[str, Any]], baseline: str) -> str:
    """In Markdown, one line an arm; intervals are 95 % bootstrap intervals over batches.

    Arms differ in the size of their mean gradients, so that their variances alone do not compare; the calls after which
    signal and noise are equal do.
    """
    samples = samples_of(rows)
    reference = samples[REFERENCE].signal if REFERENCE in samples else float("nan")
    found = {arm: estimates(sample, reference) for arm, sample in samples.items()}
    header = ["arm", "batches", "calls a batch", "children a question", "tr(Cov)", "|mean|^2 / tr(Cov)"]
    header += ["calls for a ratio of 1", f"as a share of those of {baseline}", "cosine to the reference"]
    lines = [f"| {' | '.join(header)} |", "|" + "---|" * len(header)]
    for arm in sorted(found, key=lambda name: (name != baseline, name)):
        own, base = found[arm], found.get(baseline)
        children = np.mean([row["forks_per_question"] for row in rows if row["arm"] == arm])
        cells = [arm, str(len(samples[arm].calls)), f"{own['calls'][0]:,.0f}", f"{children:.2f}"]
        cells += [_show(own[name]) for name in ("variance", "signal_to_noise", "calls_to_signal")]
        is_compared = base is not None and arm != baseline and len(own["calls"]) == len(base["calls"])
        with np.errstate(invalid="ignore"):  # Two infinite numbers of calls have no ratio.
            cells.append(_show(own["calls_to_signal"] / base["calls_to_signal"]) if is_compared else "")
        cells.append("" if arm == REFERENCE else _show(own["cosine"]))
        lines.append(f"| {' | '.join(cells)} |")
    told = [f"{column}: {', '.join(sorted({row[column] for row in rows}))}" for column in ("commit", "machine")]
    return "\n".join([*lines, "", *told])


def _show(values: np.ndarray) -> str:
    value, low, high = interval(values)
    return "" if np.isnan(value) else f"{value:.3g} [{low:.3g}, {high:.3g}]"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--table", type=Path, required=True, help="a .parquet file of rows")
    print(table(pq.read_table(parser.parse_args().table).to_pylist(), REFERENCE))
