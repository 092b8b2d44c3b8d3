"""Entropies of the first tokens of running requests, measured in the process that computes the logits.

The windows live in the process that holds the model, which may differ from the engine's process. They outlive the rows
of the batch: vLLM removes a request's row when the request ends and when it is preempted.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from rllib_arpo.core.entropy import ENTROPY_ESTIMATORS

NO_ENTROPIES = np.zeros(0, dtype=np.float32)

#: Requests whose entropies are computed at a time. The limit bounds memory, since an engine's memory profile does not
#: include this computation (three tensors of rows x V float32).
_ROWS_AT_ONCE = 64
#: Initial number of slots and of places in a store.
_FIRST_SIZE = (16, 32)


class EntropyStore:
    """Entropies of the running requests of one model, [slots, places] float32 on its device; a request has a slot.

    The store doubles when it is full, so that a request costs memory for the tokens that it has generated and not for
    those that it may generate. NaN marks an entropy that was not measured.
    """

    def __init__(self) -> None:
        self._values = torch.zeros(0, 0)
        self._num_slots = 0
        self._free: list[int] = []

    def new_slot(self) -> int:
        if not self._free:
            self._num_slots += 1
            return self._num_slots - 1
        slot = self._free.pop()
        # A slot that was never measured may lie beyond the store's end.
        self._values[slot : slot + 1].fill_(torch.nan)
        return slot

    def free_slot(self, slot: int) -> None:
        self._free.append(slot)

    def put(self, slots: torch.Tensor, places: torch.Tensor, entropies: torch.Tensor) -> None:
        """Args: [n] each, on the device. The caller has called `reserve` with the largest place."""
        self._values[slots, places] = entropies

    def get(self, slot: int, n: int) -> torch.Tensor:
        """The first n entropies of a request, [n] on the device."""
        return self._values[slot, :n]

    def reserve(self, place: int, device: torch.device) -> None:
        """Makes room for all slots, up to and including `place`."""
        old = self._values
        if self._num_slots <= old.shape[0] and place < old.shape[1]:
            return
        needed = (self._num_slots, place + 1)
        sizes = zip(needed, old.shape, _FIRST_SIZE, strict=True)
        size = [has if need <= has else max(first, 2 * has, need) for need, has, first in sizes]
        self._values = torch.full(size, torch.nan, dtype=torch.float32, device=device)
        if old.numel():
            self._values[: old.shape[0], : old.shape[1]] = old


@dataclass(frozen=True, slots=True)
class EntropyWindow:
    """The leading tokens of one request whose entropies are measured.

    Attributes:
        temperature: > 0.
        size: how many tokens, at most.
        estimator: a key of `ENTROPY_ESTIMATORS`.
        store, slot: where the entropies are.
    """

    temperature: float
    size: int
    estimator: str
    store: EntropyStore
    slot: int


_WINDOWS: dict[int, EntropyWindow] = {}


def open_window(
    store: EntropyStore, key: int, size: int, estimator: str, *, temperature: float, num_generated: int
) -> EntropyWindow | None:
    """The window of request `key`, which joins the batch with `num_generated` tokens of its own; None if it is full.

    A request that was preempted joins for the second time and finds its window as it was.
    """
    if num_generated >= size:
        return None
    if key not in _WINDOWS:
        _WINDOWS[key] = EntropyWindow(temperature, size, estimator, store, store.new_slot())
    return _WINDOWS[key]


def measure(store: EntropyStore, rows: Iterable[tuple[int, EntropyWindow, int]], logits: torch.Tensor) -> None:
    """Adds the entropy of the next token to every window that has room for it; does not wait for the device.

    H = -sum_v p(v) ln p(v), p = softmax(logits / temperature); the window's estimator says which tokens the sum covers
    (`core/entropy.py`).

    Args:
        store: of all the windows.
        rows: (row of `logits`, window, number of tokens generated so far).
        logits: [rows, V] float32, before the temperature.
    """
    unfinished = [row for row in rows if 0 <= row[2] < row[1].size]
    for estimator in {window.estimator for _, window, _ in unfinished}:
        same = [row for row in unfinished if row[1].estimator == estimator]
        store.reserve(max(place for _, _, place in same), logits.device)
        for start in range(0, len(same), _ROWS_AT_ONCE):
            indices, windows, places = zip(*same[start : start + _ROWS_AT_ONCE], strict=True)
            temperatures = _on_device([window.temperature for window in windows], logits.device)
            where = _on_device([indices, [window.slot for window in windows], places], logits.device)
            # In place where possible: with a large vocabulary, fresh memory costs more than the arithmetic.
            scaled = logits[where[0]].div_(temperatures[:, None])
            log_probs = scaled.log_softmax(dim=-1, dtype=torch.float32)
            # The processor sees a prompt that is computed in chunks once per chunk; the last chunk counts.
            store.put(where[1], where[2], ENTROPY_ESTIMATORS[estimator](log_probs))


def _on_device(values: Sequence[Any], device: torch.device) -> torch.Tensor:
    """Copies from pinned memory; a copy from pageable memory would wait for the device."""
    return torch.tensor(values, pin_memory=device.type == "cuda").to(device, non_blocking=True)


def take_entropies(
    _worker: Any, ended: Sequence[tuple[int, int]], running: Sequence[tuple[int, int]] = ()
) -> list[np.ndarray]:
    """The first n entropies, [n] float32 nats, of the windows (key, n): those of `ended`, then those of `running`.

    Closes the windows of `ended`; the others go on.

    Args:
        _worker: the engine's worker, which passes itself to every function that runs in its process.
    """
    # A request that ends before it joins the batch has no window, and n = 0.
    closed = [(_WINDOWS.pop(key, None), n) for key, n in ended]
    wanted: list[tuple[Any, int]] = closed + [(_WINDOWS[key], n) for key, n in running]
    parts = [window.store.get(window.slot, n) for window, n in wanted if n]
    # One copy from the device for all of them.
    flat = torch.cat(parts).cpu().numpy() if parts else NO_ENTROPIES
    for window, _ in closed:
        if window is not None:
            window.store.free_slot(window.slot)
    return np.split(flat, np.cumsum([n for _, n in wanted])[:-1])
