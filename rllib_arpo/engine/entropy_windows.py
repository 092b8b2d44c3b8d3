"""Exact entropies of the first tokens of running requests, measured where the logits are: beside the sampler.

The windows live in the process that holds the model, which may be another one than the engine's; they outlive the rows
of the batch, from which a request is removed when it ends and when it is preempted.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch

NO_ENTROPIES = np.zeros(0, dtype=np.float32)

_ROWS_AT_ONCE = 64
"""Entropies are computed for so many requests at a time: an engine's memory profile does not know of this computation
(three tensors of rows x V float32)."""


@dataclass(slots=True)
class EntropyWindow:
    """The leading tokens of one request whose entropies are measured.

    Attributes:
        temperature: > 0.
        generated: the engine's own list of the request's tokens, which grows.
        entropies: scalar tensors on the model's device; None where the token is not sampled yet.
    """

    temperature: float
    size: int
    generated: list[int]
    entropies: list[torch.Tensor | None]


_WINDOWS: dict[int, EntropyWindow] = {}


def open_window(key: int, size: int, temperature: float, generated: list[int]) -> EntropyWindow | None:
    """The window of request `key`, which joins the batch (for the second time if it was preempted); None if full."""
    if len(generated) >= size:
        return None
    window = _WINDOWS.setdefault(key, EntropyWindow(temperature, size, generated, [None] * size))
    window.generated = generated
    return window


def measure(windows: Iterable[tuple[int, EntropyWindow]], logits: torch.Tensor) -> None:
    """Adds the entropy of the next token to every (row, window) that is not full.

    H = -sum_v p(v) ln p(v) over the whole vocabulary, p = softmax(logits / temperature).

    Args:
        logits: [rows, V] float32, before the temperature.
    """
    unfinished = [(row, window) for row, window in windows if len(window.generated) < window.size]
    for start in range(0, len(unfinished), _ROWS_AT_ONCE):
        rows, some = zip(*unfinished[start : start + _ROWS_AT_ONCE], strict=True)
        temperatures = torch.tensor([window.temperature for window in some], device=logits.device)
        scaled = logits[torch.tensor(rows, device=logits.device)] / temperatures[:, None]
        # `entr` is -x ln x, and 0 at 0.
        entropies = torch.special.entr(scaled.softmax(dim=-1, dtype=torch.float32)).sum(dim=-1)
        for window, entropy in zip(some, entropies.unbind(), strict=True):
            # A prompt that is computed in chunks is seen once per chunk; the last one counts.
            window.entropies[len(window.generated)] = entropy


def take_entropies(_worker, wanted: list[tuple[int, int]]) -> list[np.ndarray]:
    """Closes the windows (key, n) and returns their first n entropies, [n] float32 nats each.

    Args:
        _worker: the engine's worker, which hands itself to every function that runs in its process.
    """
    taken = []
    for key, n in wanted:
        # A request that ends before it joins the batch has no window, and n = 0.
        window = _WINDOWS.pop(key, None)
        taken.append(torch.stack(window.entropies[:n]).cpu().numpy() if n else NO_ENTROPIES)
    return taken
