"""Entropies of the first tokens of running requests, measured where the logits are: beside the sampler.

The windows live in the process that holds the model, which may be another one than the engine's; they outlive the rows
of the batch, from which a request is removed when it ends and when it is preempted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from rllib_arpo.core.entropy import ENTROPY_ESTIMATORS

NO_ENTROPIES = np.zeros(0, dtype=np.float32)

_ROWS_AT_ONCE = 64
"""Entropies are computed for so many requests at a time: an engine's memory profile does not know of this computation
(three tensors of rows x V float32)."""


@dataclass(slots=True)
class EntropyWindow:
    """The leading tokens of one request whose entropies are measured.

    Attributes:
        temperature: > 0.
        entropies: scalar tensors on the model's device; None where the token is not sampled yet.
    """

    temperature: float
    size: int
    estimator: str
    entropies: list[torch.Tensor | None]


_WINDOWS: dict[int, EntropyWindow] = {}


def open_window(key: int, size: int, estimator: str, *, temperature: float, num_generated: int) -> EntropyWindow | None:
    """The window of request `key`, which joins the batch with `num_generated` tokens of its own; None if it is full.

    A request that was preempted joins for the second time and finds its window as it was.
    """
    if num_generated >= size:
        return None
    return _WINDOWS.setdefault(key, EntropyWindow(temperature, size, estimator, [None] * size))


def measure(rows: Iterable[tuple[int, EntropyWindow, int]], logits: torch.Tensor) -> None:
    """Puts the entropy of the next token into every window that has room for it; nothing waits for the device.

    H = -sum_v p(v) ln p(v), p = softmax(logits / temperature); the sum is over what the window's estimator counts
    (`core/entropy.py`).

    Args:
        rows: (row of `logits`, window, number of tokens generated so far).
        logits: [rows, V] float32, before the temperature.
    """
    unfinished = [row for row in rows if 0 <= row[2] < row[1].size]
    for start in range(0, len(unfinished), _ROWS_AT_ONCE):
        indices, windows, places = zip(*unfinished[start : start + _ROWS_AT_ONCE], strict=True)
        temperatures = _on_device([window.temperature for window in windows], logits.device)
        # In place where it can be: of a large vocabulary, fresh memory costs more than the arithmetic.
        scaled = logits[_on_device(indices, logits.device)].div_(temperatures[:, None])
        log_probs = scaled.log_softmax(dim=-1, dtype=torch.float32)
        estimators = {window.estimator for window in windows}
        entropies = {name: ENTROPY_ESTIMATORS[name](log_probs).unbind() for name in estimators}
        for i, (window, place) in enumerate(zip(windows, places, strict=True)):
            # A prompt that is computed in chunks is seen once per chunk; the last one counts.
            window.entropies[place] = entropies[window.estimator][i]


def _on_device(values: Sequence[float], device: torch.device) -> torch.Tensor:
    """A copy from pageable memory would wait for the device."""
    return torch.tensor(values, pin_memory=device.type == "cuda").to(device, non_blocking=True)


def take_entropies(_worker, wanted: list[tuple[int, int]]) -> list[np.ndarray]:
    """Closes the windows (key, n) and returns their first n entropies, [n] float32 nats each.

    Args:
        _worker: the engine's worker, which hands itself to every function that runs in its process.
    """
    # A request that ends before it joins the batch has no window, and n = 0.
    taken = [(_WINDOWS.pop(key, None), n) for key, n in wanted]
    scalars = [entropy for window, n in taken if n for entropy in window.entropies[:n]]
    if not scalars:
        return [NO_ENTROPIES] * len(wanted)
    # One copy from the device for all of them.
    flat = torch.stack(scalars).cpu().numpy()
    return np.split(flat, np.cumsum([n for _, n in taken])[:-1])
