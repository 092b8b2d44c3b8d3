"""The simulation of the fork rules."""

import numpy as np
import pytest

from release.evidence.fork_shapes import Shape, gradient, sample_tree, signal_to_noise, simulate
from rllib_arpo.envs.tasks.trail_forms import MAIN


def test_shapes_by_hand():
    """Both roots fork at their first decision, each into seven; every leaf decides what comes after by itself."""
    rng = np.random.default_rng(0)
    for _ in range(20):
        leaves, depths = sample_tree(MAIN, Shape(16, 2, 7, 1.0, 0.0), 0.5, rng)
        assert [len(choices) for choices in leaves] == [MAIN.num_decisions] * 16
        assert len(depths) == 14
        assert len(set(depths)) == 1
        leaves, depths = sample_tree(MAIN, Shape(16, 4, 1, 0.0, 0.0), 0.5, rng)
        assert (len(leaves), depths) == (16, [])
    without_forks = simulate(MAIN, Shape(16, 16, 1, 0.0, 0.0), 50, seed=0)
    assert without_forks.calls == 16 * MAIN.num_pages
    forked = simulate(MAIN, Shape(16, 2, 7, 1.0, 0.0), 50, seed=0)
    assert forked.calls == pytest.approx(16 * MAIN.num_pages - 14 * forked.depth)


def test_a_gradient_by_hand():
    """Two decisions of two hits each; one of two leaves is right: A is 1 / sqrt(2) and its negative, over L = 2."""
    g = gradient([[0, 0], [0, 1]], num_hits=2, right=0.75).reshape(3, 2)
    assert g[0] == pytest.approx([0.0, 0.0])  # The first decision was the same.
    assert g[1] == pytest.approx([0.5**1.5, -(0.5**1.5)], rel=1e-5)
    assert g[2] == pytest.approx([0.0, 0.0])


def test_signal_to_noise_of_a_known_distribution():
    rng = np.random.default_rng(0)
    gradients = np.array([2.0, 0.0, 0.0]) + rng.normal(size=(20_000, 3))
    assert signal_to_noise(gradients, np.ones(20_000)) == pytest.approx(4 / 3, rel=0.03)
