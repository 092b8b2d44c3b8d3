"""The measurement of entropies beside the sampler, without an engine."""

import numpy as np
import torch

from rllib_arpo.engine.entropy_windows import EntropyWindow, measure
from tests.helpers.entropy import token_entropy


def test_rows_are_measured_while_their_windows_have_room():
    """150 rows in a random order, more than are computed at a time; every other window is full."""
    rng = np.random.default_rng(0)
    logits = 3 * torch.randn(200, 11, generator=torch.Generator().manual_seed(0))
    given, rows = logits.clone(), rng.permutation(200)[:150].tolist()
    windows = [EntropyWindow(0.5 + i / 50, 1 + i % 9, "exact") for i in range(150)]
    places = [window.size - (i % 2 == 0) for i, window in enumerate(windows)]
    entropies = measure(zip(rows, windows, places, strict=True), logits)
    expected = torch.full((200,), torch.nan)
    for row, window in list(zip(rows, windows, strict=True))[::2]:
        expected[row] = token_entropy(logits[row], window.temperature)
    torch.testing.assert_close(entropies, expected, equal_nan=True, rtol=0, atol=1e-5)
    assert entropies.dtype == torch.float32
    torch.testing.assert_close(logits, given, rtol=0, atol=0)


def test_nothing_to_measure_costs_nothing():
    full = EntropyWindow(1.0, 3, "exact")
    assert measure([], torch.zeros(2, 4)) is None
    assert measure([(0, full, 3), (1, full, 4)], torch.zeros(2, 4)) is None
