"""The trees that `TreeSampler` samples, each with its exact probability, against those of a slow and plain rollout."""

import math

import pytest

from tests.enumerable.problem import make_problem
from tests.enumerable.sampling import rollout_settings, tree_distribution
from tests.enumerable.sequential import sequential_distribution


def rises(rise, _choices):
    return int(rise > 0)


def rises_a_lot(rise, _choices):
    """0.5 + 0.2 dH > 0.54."""
    return int(rise / math.log(2) > 0.2)


def at_random(_rise, choices):
    return 2 if choices.choose([0.3, 0.7]) == 0 else 0


def by_probability(rise, choices):
    p = 0.5 + 0.2 * rise / math.log(2)
    return sum(choices.choose([p, 1 - p]) == 0 for _ in range(2))


TWO_TURNS, LONG_TURNS = make_problem(1), make_problem(6, turn_tokens=2)
ANY_LENGTH, LARGE_RISES = make_problem(2, num_turns=3, can_stop=True), make_problem(3, turn_tokens=2)
RANDOM = {"branching": "random", "random_fork_probability": 0.3, "branch_width": 2}


@pytest.mark.slow
@pytest.mark.parametrize(("problem", "rule", "plainly", "keywords"), [
    pytest.param(ANY_LENGTH, rises, {}, {}, id="threshold"),
    pytest.param(ANY_LENGTH, rises, {}, {"deterministic": True}, id="threshold, deterministic"),
    pytest.param(ANY_LENGTH, rises, {}, {"budget_allocation": "ranked"}, id="threshold, ranked"),
    pytest.param(LONG_TURNS, rises, {"window": 2}, {"entropy_window": 2}, id="k = 2"),
    pytest.param(LARGE_RISES, rises_a_lot, {"roots": 1}, {"branch_threshold": 0.54, "num_initial_rollouts": 1},
                 id="tau > alpha"),
    pytest.param(ANY_LENGTH, at_random, {"roots": 1}, {**RANDOM, "num_initial_rollouts": 1}, id="random, any length"),
    pytest.param(TWO_TURNS, at_random, {}, RANDOM, id="random"),
    pytest.param(TWO_TURNS, by_probability, {}, {"branching": "probability", "branch_width": 2}, id="per child"),
    # Roots of two turns reach their only node at once, in order: a budget that binds goes the same way.
    pytest.param(TWO_TURNS, at_random, {"budget": 3}, {**RANDOM, "num_rollouts": 5}, id="the budget binds"),
    pytest.param(TWO_TURNS, at_random, {"budget": 3}, {**RANDOM, "branch_width": "wide", "num_rollouts": 5},
                 id="wide: two children, then one"),
    pytest.param(TWO_TURNS, at_random, {"budget": 2, "top_up": True}, {**RANDOM, "num_rollouts": 4},
                 id="random, topped up"),
    pytest.param(TWO_TURNS, rises, {"budget": 1, "top_up": True}, {"num_rollouts": 3}, id="topped up"),
])  # fmt: skip
def test_the_sampler_and_a_plain_rollout_have_the_same_distribution_of_trees(problem, rule, plainly, keywords):
    trees = tree_distribution(problem, rollout_settings(**keywords), top_up=plainly.get("top_up", False))
    sampled, plain = trees.probabilities(), sequential_distribution(problem, rule, **plainly).probabilities()
    assert not sampled.keys() ^ plain.keys()
    # The engine's entropies are float32.
    assert max(abs(sampled[tree] / plain[tree] - 1.0) for tree in plain) < 1e-6
    shapes = {tuple(t.agent_id for t in tree.trajectories) for _, tree in trees}
    assert len(shapes) > 1
