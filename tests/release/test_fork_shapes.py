"""The simulation of the fork rules."""

from dataclasses import replace

import numpy as np
import pytest

from release.evidence.fork_shapes import Shape, gradient, sample_tree, shape, signal_to_noise, simulate
from rllib_arpo.core.tree import QuestionTree
from rllib_arpo.envs.tasks.trail_forms import LATE, MAIN
from tests.helpers.scripts import answer, tool
from tests.rollout.conftest import sampled_tree

#: Begins every response of `ScriptedEnv`'s tool.
RESPONSE = 50


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
    without_forks = simulate(MAIN, Shape(16, 16, 1, 0.0, 0.0), 50)
    assert without_forks.calls == 16 * MAIN.num_pages
    forked = simulate(MAIN, Shape(16, 2, 7, 1.0, 0.0), 50)
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


def sampled(num_pages: int, pattern: tuple[int, ...], rollouts: int, roots: int, width: int) -> QuestionTree:
    """The tree sampler's, where the entropy rises after the pages of the pattern alone."""

    def script(request, _times_asked):
        page = request.prompt_token_ids.count(RESPONSE) - 1
        return (tool if page + 1 < num_pages else answer)(10, 2.0 if page in pattern else 1.0)

    sizes = {"num_rollouts": rollouts, "num_initial_rollouts": roots, "branch_width": width}
    return sampled_tree(script, **sizes, deterministic=True).tree


@pytest.mark.parametrize("form", [MAIN, LATE], ids=lambda form: form.name)
@pytest.mark.parametrize("text", ["16:4:1", "16:4:3", "16:2:wide", "16:8:1", "32:4:7", "5:5:2", "64:2:2"])
def test_the_simulation_forks_where_the_tree_sampler_does(form, text):
    rollouts, roots, width = shape(text)
    for pattern in form.patterns:
        tree = sampled(form.num_pages, pattern, rollouts, roots, width)
        forks = [t.num_inherited_turns for t in tree.trajectories if t.parent is not None]
        certain = Shape(rollouts, roots, width, 1.0, 0.0)
        leaves, depths = sample_tree(replace(form, patterns=(pattern,)), certain, 0.5, np.random.default_rng(0))
        assert (len(leaves), sorted(depths)) == (len(tree.trajectories), sorted(forks))


@pytest.mark.parametrize("text", ["16:2:broad", "16:2:0", "16:2:-1", "2:4:1", "4:0:wide", "16:2", "1:1:1"])
def test_what_is_not_a_shape_is_refused(text):
    with pytest.raises(ValueError):
        shape(text)
