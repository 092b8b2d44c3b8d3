"""Measures the entropies of running requests' first tokens, in the process that computes the logits."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from rllib_arpo.core.entropy import ENTROPY_ESTIMATORS

#: How many requests' entropies are computed at a time. It bounds memory: an engine's memory profile does not include
#: this computation (three tensors of rows x V float32).
_ROWS_AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class EntropyWindow:
    """The leading tokens of one request whose entropies are measured.

    Attributes:
        temperature: > 0.
        size: the largest number of tokens.
        estimator: a key of `ENTROPY_ESTIMATORS`.
    """

    temperature: float
    size: int
    estimator: str


def measure(rows: Iterable[tuple[int, EntropyWindow, int]], logits: torch.Tensor) -> torch.Tensor | None:
    """The entropy of the next token of every request whose window has room for it; does not wait for the device.

    H = -sum_v p(v) ln p(v), p = softmax(logits / temperature); the window's estimator decides over which tokens it sums
    (`core/entropy.py`).

    Args:
        rows: (row of `logits`, window, number of tokens generated so far).
        logits: [rows, V] float32, before the temperature.

    Returns:
        [rows] float32 nats on the logits' device, NaN in rows that are not measured; None if no row is measured.
    """
    unfinished = [row for row in rows if 0 <= row[2] < row[1].size]
    if not unfinished:
        return None
    entropies = torch.full((len(logits),), torch.nan, dtype=torch.float32, device=logits.device)
    for estimator in {window.estimator for _, window, _ in unfinished}:
        same = [row for row in unfinished if row[1].estimator == estimator]
        for start in range(0, len(same), _ROWS_AT_ONCE):
            indices, windows, _ = zip(*same[start : start + _ROWS_AT_ONCE], strict=True)
            temperatures = _on_device([window.temperature for window in windows], logits.device)
            where = _on_device(indices, logits.device)
            # In place where possible: with a large vocabulary, fresh memory costs more than the arithmetic.
            scaled = logits[where].div_(temperatures[:, None])
            log_probs = scaled.log_softmax(dim=-1, dtype=torch.float32)
            entropies[where] = ENTROPY_ESTIMATORS[estimator](log_probs)
    return entropies


def _on_device(values: Sequence[Any], device: torch.device) -> torch.Tensor:
    """Copies from pinned memory; a copy from pageable memory would wait for the device."""
    return torch.tensor(values, pin_memory=device.type == "cuda").to(device, non_blocking=True)
