"""The measurement itself on a CUDA device: exact, and nothing waits for the device before a window is taken."""

from __future__ import annotations

import pytest
import torch

from rllib_arpo.engine import entropy_windows
from rllib_arpo.engine.entropy_windows import EntropyStore, measure, open_window, take_entropies
from tests.helpers.entropy import token_entropy


def test_measuring_does_not_wait_for_the_device(monkeypatch):
    monkeypatch.setattr(entropy_windows, "_WINDOWS", {})
    logits = 3 * torch.randn(200, 5000, device="cuda", generator=torch.Generator("cuda").manual_seed(0))
    store = EntropyStore()
    windows = [
        open_window(store, key, 2, ("exact", "top_k")[key % 2], temperature=0.5 + key / 100, num_generated=0)
        for key in range(150)
    ]
    torch.cuda.synchronize()
    mode = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        for place in range(3):
            measure(store, [(row + 7, window, place) for row, window in enumerate(windows)], logits)
    finally:
        torch.cuda.set_sync_debug_mode(mode)
    taken = take_entropies(None, [(key, 2) for key in range(150)])
    for key in range(0, 150, 2):
        exact = token_entropy(logits[key + 7], 0.5 + key / 100).item()
        assert taken[key].tolist() == pytest.approx([exact, exact], abs=1e-4)
