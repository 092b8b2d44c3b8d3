"""Prints how much the gradient of an update varies between batches at fixed weights, for each arm of a study.

    python -m release.evidence.gradient_variance --table release/evidence/results/variance/credits-small.parquet

The rows were sampled once; `SAMPLED_BY` is the last commit that can sample them. Each arm of a study sampled batches
with its own rollout from the cold-started model, all arms with the same questions. The learner computed the gradient of
the arm's loss before clipping, and took no step. The arm `reference` has four times as many batches of the study's
baseline, with the questions in another order; we compare the other arms with its mean gradient and its calls.

`n` batches gave the gradients g_1 .. g_n, each an independent estimate of the same mean. Let G_ij = g_i . g_j. The mean
of G_ij over pairs of different batches is an unbiased estimate of the mean gradient's squared norm ("signal"). The mean
of G_ii minus the signal is an unbiased estimate of the trace of the covariance ("variance").
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

SAMPLED_BY = "d39b2bf0"
REFERENCE = "reference"
NUM_RESAMPLES, LEVEL = 10_000, 0.95
Row = Mapping[str, Any]


def estimates(
    rows: Sequence[Row], reference_signal: float = float("nan"), num_resamples: int = NUM_RESAMPLES
) -> dict[str, np.ndarray]:
    """Figures of an arm's batches, and of bootstrap samples of the same size.

    A batch that is drawn twice makes no pair with itself, which gives the resampled signals the right mean. Their inner
    products come from the sketches, shifted to agree with the exact signal. Arms with the same number of batches draw
    the same ones, so their ratios are paired.

    Args:
        rows: a row for each batch, at least two.
        reference_signal: the signal of the reference, which has other batches.

    Returns:
        Arrays of [1 + resamples]; the first entry is for the batches themselves:
        "calls" of a batch; "variance"; "signal"; "signal_to_noise" of one batch; "calls_to_signal", the calls of a
        batch whose signal equals its noise (infinite without a positive signal); "cosine" between the mean gradient
        and the reference's (NaN without a positive signal).
    """
    n = len(rows)
    norms, sketches = column(rows, "squared_norm"), column(rows, "sketch")
    exact = (rows[-1]["squared_norm_of_sum"] - norms.sum()) / (n * (n - 1))
    drawn = np.random.default_rng(0).multinomial(n, np.full(n, 1 / n), size=num_resamples)
    counts = np.concatenate([np.ones((1, n), dtype=drawn.dtype), drawn]).astype(float)
    products = sketches @ sketches.T
    np.fill_diagonal(products, 0.0)
    pairs = n**2 - (counts**2).sum(1)
    # A single batch, drawn n times, has no pair.
    signal = np.einsum("ri,ij,rj->r", counts, products, counts, optimize=True) / np.where(pairs > 0, pairs, np.nan)
    signal += exact - signal[0]
    calls, variance = counts @ column(rows, "tool_calls") / n, counts @ norms / n - signal
    seen = np.where(signal > 0, signal, np.nan)
    both = np.sqrt(seen * (reference_signal if reference_signal > 0 else np.nan))
    return {
        "calls": calls,
        "variance": variance,
        "signal": signal,
        "signal_to_noise": signal / variance,
        "calls_to_signal": np.where(signal > 0, variance * calls / np.maximum(signal, 1e-300), np.inf),
        "cosine": counts @ column(rows, "reference_dot") / n / both,
    }


def column(rows: Sequence[Row], name: str) -> np.ndarray:
    return np.array([row[name] for row in rows], dtype=float)


def interval(values: np.ndarray) -> tuple[float, float, float]:
    """The first of [1 + resamples] values, and percentiles of the others (NaN if there are none)."""
    resampled = values[1:][~np.isnan(values[1:])]
    if not len(resampled):
        return float(values[0]), float("nan"), float("nan")
    # "nearest", since nothing lies between a number and infinity.
    low, high = np.quantile(resampled, ((1 - LEVEL) / 2, (1 + LEVEL) / 2), method="nearest")
    return float(values[0]), float(low), float(high)


def table(rows: Sequence[Row], baseline: str) -> str:
    """The table in Markdown, with a line for each arm and 95 % bootstrap intervals over batches.

    Variances alone cannot be compared, since the arms' mean gradients differ in size. The calls after which signal and
    noise are equal can.
    """
    arms: dict[str, list[Row]] = {}
    for row in sorted(rows, key=lambda row: row["batch"]):
        arms.setdefault(row["arm"], []).append(row)
    reference = estimates(arms[REFERENCE])["signal"][0]
    found = {arm: estimates(of_arm, reference) for arm, of_arm in arms.items()}
    header = ["arm", "batches", "calls a batch", "children a question", "tr(Cov)", "|mean|^2 / tr(Cov)"]
    header += ["calls for a ratio of 1", f"as a share of those of {baseline}", "cosine to the reference"]
    lines = [f"| {' | '.join(header)} |", "|" + "---|" * len(header)]
    base = found[baseline]["calls_to_signal"]
    for arm in sorted(found, key=lambda name: (name != baseline, name)):
        own = found[arm]
        cells = [arm, str(len(arms[arm])), f"{own['calls'][0]:,.0f}"]
        cells += [f"{column(arms[arm], 'forks_per_question').mean():.2f}"]
        cells += [_show(own[name]) for name in ("variance", "signal_to_noise", "calls_to_signal")]
        with np.errstate(invalid="ignore"):  # Two infinite numbers of calls have no ratio.
            cells.append("" if arm == baseline else _show(own["calls_to_signal"] / base))
        cells.append("" if arm == REFERENCE else _show(own["cosine"]))
        lines.append(f"| {' | '.join(cells)} |")
    origin = [f"{name}: {', '.join(sorted({row[name] for row in rows}))}" for name in ("commit", "machine")]
    return "\n".join([*lines, "", *origin])


def _show(values: np.ndarray) -> str:
    value, low, high = interval(values)
    return "" if np.isnan(value) else f"{value:.3g} [{low:.3g}, {high:.3g}]"


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--table", type=Path, required=True, help="a .parquet file of rows")
    print(table(pq.read_table(parser.parse_args().table).to_pylist(), REFERENCE))
