"""The tree estimator's expected gradient against the exact policy gradient (docs/design.md, "Theory").

Every tree that the rollout can sample is enumerated with its probability, so the expectations are exact; the layout,
the weights, the attribution and the fork decision are the project's own functions.
"""

from __future__ import annotations

import numpy as np
import pytest

from rllib_arpo.core.advantages import group_advantages
from rllib_arpo.core.branching import BranchingParams
from tests.core.enumerable import Estimator, RolloutSettings, exact_gradient, expected_gradients, make_problem

ALWAYS = BranchingParams("threshold", branch_base_probability=1.0, branch_entropy_weight=0.0)
ALWAYS_TWO = BranchingParams("threshold", 2, branch_base_probability=1.0, branch_entropy_weight=0.0)
RANDOM = BranchingParams("random", random_fork_probability=0.3)
RANDOM_TWO = BranchingParams("random", 2, random_fork_probability=0.3)
THRESHOLD = BranchingParams("threshold")
PROBABILITY_TWO = BranchingParams("probability", 2)
NEVER = BranchingParams("never")


def relative_error(estimate: np.ndarray, exact: np.ndarray) -> float:
    return float(np.linalg.norm(estimate - exact) / np.linalg.norm(exact))


def sine(estimate: np.ndarray, exact: np.ndarray) -> float:
    """The sine of the angle between the two: the relative error at the best scale."""
    cosine = (estimate * exact).sum() / (np.linalg.norm(estimate) * np.linalg.norm(exact))
    return float(np.sqrt(max(0.0, 1.0 - cosine**2)))


@pytest.mark.parametrize(
    ("problem", "settings"),
    [
        (make_problem(0, num_turns=3), RolloutSettings(ALWAYS, 1)),
        (make_problem(2, num_turns=2), RolloutSettings(ALWAYS, 2)),
        (make_problem(1, num_turns=2), RolloutSettings(ALWAYS_TWO, 2)),
    ],
    ids=["nested forks", "two roots", "two children"],
)
def test_case_a_equal_forks_and_uniform_weights_give_the_exact_gradient(problem, settings):
    exact = exact_gradient(problem)
    (estimate,) = expected_gradients(problem, settings, [Estimator("uniform")])
    assert np.linalg.norm(exact) > 0.1
    assert relative_error(estimate, exact) < 1e-12


@pytest.mark.parametrize(
    ("problem", "settings"),
    [
        (make_problem(0, num_turns=3, vocab_size=3, can_stop=True), RolloutSettings(RANDOM, 1)),
        (make_problem(1, num_turns=2, vocab_size=3, can_stop=True), RolloutSettings(RANDOM)),
        (make_problem(1, num_turns=2, can_stop=True), RolloutSettings(RANDOM_TWO)),
        (make_problem(1, num_turns=2, vocab_size=3), RolloutSettings(THRESHOLD)),
        (make_problem(2, num_turns=2, turn_tokens=2), RolloutSettings(THRESHOLD)),
        (make_problem(2, num_turns=2), RolloutSettings(PROBABILITY_TWO)),
        (make_problem(1, num_turns=2, turn_tokens=2), RolloutSettings(THRESHOLD, budget=1)),
    ],
    ids=["random, nested", "random", "random, Z = 2", "k = 1", "k = 1 of 2", "per child", "k = 1, budget binds"],
)
def test_case_b_node_decisions_and_branch_weights_give_the_exact_gradient(problem, settings):
    exact = exact_gradient(problem)
    branch, uniform = expected_gradients(problem, settings, [Estimator("branch"), Estimator("uniform")])
    assert np.linalg.norm(exact) > 0.1
    assert relative_error(branch, exact) < 1e-12
    # The weights are what does it: without them the same trees are biased.
    assert relative_error(uniform, exact) > 0.005


def measure_bias() -> dict[str, tuple[float, float]]:
    """(relative error, sine of the angle) of E[gradient], root mean square over three problems.

    V = 2, two turns of two tokens, M = 3, N = 2, alpha = tau = 0.5, no clipping.
    """
    reward, branch_reward = Estimator("uniform"), Estimator("branch")
    centered = Estimator("uniform", lambda rewards: group_advantages(rewards, normalize_std=False))
    normalized = Estimator("uniform", group_advantages)
    rows = {
        RolloutSettings(THRESHOLD, budget=1, entropy_window=1): {"k = 1, branch weights, reward": branch_reward},
        RolloutSettings(THRESHOLD, budget=1, entropy_window=2): {
            "k = 2, branch weights, reward": branch_reward,
            "k = 2, uniform weights, reward": reward,
        },
        RolloutSettings(THRESHOLD, budget=1, entropy_window=2, top_up=True): {
            "k = 2, branch weights, top-up, reward": branch_reward,
            "k = 2, uniform weights, top-up, reward": reward,
            "k = 2, uniform weights, top-up, group mean": centered,
            "ARPO: k = 2, uniform weights, top-up, group-normalised": normalized,
        },
        RolloutSettings(NEVER, num_initial_rollouts=3): {
            "GRPO without std: no forks, group mean": centered,
            "GRPO: no forks, group-normalised": normalized,
        },
    }
    errors: dict[str, list[tuple[float, float]]] = {}
    for seed in range(3):
        problem = make_problem(seed, turn_tokens=2)
        exact = exact_gradient(problem)
        for settings, estimators in rows.items():
            for name, estimate in zip(
                estimators, expected_gradients(problem, settings, list(estimators.values())), strict=True
            ):
                errors.setdefault(name, []).append((relative_error(estimate, exact), sine(estimate, exact)))
    return {name: tuple(np.sqrt(np.mean(np.square(pairs), axis=0))) for name, pairs in errors.items()}


def test_the_bias_of_the_default_is_what_the_documentation_says():
    bias = measure_bias()
    for name, (error, angle) in bias.items():
        print(f"{name:56s} relative error {error:.3f}, sine of the angle {angle:.3f}")
    expected = {
        "k = 1, branch weights, reward": (0.0, 0.0),
        "k = 2, branch weights, reward": (0.145, 0.139),
        "k = 2, uniform weights, reward": (0.127, 0.116),
        "k = 2, branch weights, top-up, reward": (0.078, 0.073),
        "k = 2, uniform weights, top-up, reward": (0.142, 0.116),
        "k = 2, uniform weights, top-up, group mean": (0.414, 0.156),
        "ARPO: k = 2, uniform weights, top-up, group-normalised": (0.367, 0.277),
        # The mean over M rewards contains the leaf's own: the gradient shrinks by (M - 1) / M and keeps its direction.
        "GRPO without std: no forks, group mean": (1 / 3, 0.0),
        "GRPO: no forks, group-normalised": (0.293, 0.238),
    }
    assert list(bias) == list(expected)
    for name, numbers in expected.items():
        assert bias[name] == pytest.approx(numbers, abs=6e-4), name
