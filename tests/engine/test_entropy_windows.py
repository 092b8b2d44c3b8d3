"""The store of entropies beside the sampler, without an engine."""

import numpy as np
import pytest
import torch

from rllib_arpo.engine import entropy_windows
from rllib_arpo.engine.entropy_windows import EntropyStore, measure, open_window, take_entropies
from tests.helpers.entropy import token_entropy


@pytest.fixture(autouse=True)
def no_other_windows(monkeypatch):
    monkeypatch.setattr(entropy_windows, "_WINDOWS", {})


def test_windows_of_any_length_keep_what_was_measured_while_others_come_and_go():
    """Against a dictionary of lists: 40 requests in 8 rows, of up to 150 tokens each, in an order drawn at random."""
    rng, generator = np.random.default_rng(0), torch.Generator().manual_seed(0)
    store, running, expected, taken = EntropyStore(), {}, {}, {}
    waiting = {key: int(rng.integers(1, 150)) for key in range(40)}
    while waiting or running:
        while waiting and len(running) < 8:
            key = min(waiting)
            size, temperature = waiting.pop(key), 0.5 + key / 50
            running[key] = open_window(store, key, size, "exact", temperature=temperature, num_generated=0)
            expected[key] = []
        logits = 3 * torch.randn(8, 11, generator=generator)
        rows = rng.permutation(8)[: len(running)].tolist()
        measure(store, [(row, w, len(expected[k])) for row, (k, w) in zip(rows, running.items(), strict=True)], logits)
        for row, (key, window) in zip(rows, running.items(), strict=True):
            expected[key].append(token_entropy(logits[row], window.temperature).item())
        for key in [key for key, window in running.items() if len(expected[key]) == window.size]:
            del running[key]
            (taken[key],) = take_entropies(None, [(key, len(expected[key]))])
    for key, entropies in expected.items():
        assert taken[key] == pytest.approx(entropies, abs=1e-5)
    assert entropy_windows._WINDOWS == {}
    assert store._values.shape == (16, 256)


def test_a_window_that_is_read_while_its_request_runs_goes_on():
    store = EntropyStore()
    window = open_window(store, 1, 100, "exact", temperature=1.0, num_generated=0)
    other = open_window(store, 2, 1, "exact", temperature=1.0, num_generated=0)
    flat, sure = torch.zeros(2, 8), torch.tensor([[50.0] + 7 * [0.0]] * 2)
    measure(store, [(0, window, 0), (1, other, 0)], flat)
    measure(store, [(0, window, 1), (1, other, 1)], sure)
    ended, running = take_entropies(None, [(2, 1)], [(1, 2)])
    np.testing.assert_allclose(ended, [np.log(8)], rtol=1e-6)
    np.testing.assert_allclose(running, [np.log(8), 0.0], rtol=1e-6, atol=1e-9)
    measure(store, [(1, window, 2)], flat)
    (whole,) = take_entropies(None, [(1, 3)])
    np.testing.assert_allclose(whole, [np.log(8), 0.0, np.log(8)], rtol=1e-6, atol=1e-9)


def test_the_next_request_in_a_slot_finds_nothing_of_the_last_one():
    store = EntropyStore()
    for key in (1, 2):
        window = open_window(store, key, 3, "exact", temperature=1.0, num_generated=0)
        measure(store, [(0, window, 0)], torch.zeros(1, 8))
        entropies = take_entropies(None, [], [(key, 3)])[0]
        assert window.slot == 0
        assert entropies[0] == pytest.approx(np.log(8))
        assert np.isnan(entropies[1:]).all()
        if key == 1:
            measure(store, [(0, window, 1)], torch.zeros(1, 8))
            take_entropies(None, [(key, 0)])
