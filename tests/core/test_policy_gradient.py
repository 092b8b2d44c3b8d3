"""The tree estimator's expected gradient against the exact policy gradient (docs/design.md, "Theory").

Every tree that the rollout can sample is enumerated with its probability, so the expectations are exact; the layout,
the weights, the attribution and the fork decision are the project's own functions.
"""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest

from rllib_arpo import AEPOConfig, TreeGRPOConfig
from rllib_arpo.core.advantages import group_advantages
from rllib_arpo.core.credit import same_state_credit, tree_credit
from rllib_arpo.core.rollout_history import RolloutReference
from rllib_arpo.rollout.settings import RolloutSettings
from tests.enumerable.gradients import Estimator, expected_gradients
from tests.enumerable.problem import exact_gradient, make_problem
from tests.enumerable.sampling import rollout_settings, tree_distribution

ALWAYS = {"branching": "threshold", "branch_base_probability": 1.0, "branch_entropy_weight": 0.0}
RANDOM = {"branching": "random", "random_fork_probability": 0.3}
THRESHOLD = {"branching": "threshold"}
PROBABILITY = {"branching": "probability"}


def relative_error(estimate: np.ndarray, exact: np.ndarray) -> float:
    return float(np.linalg.norm(estimate - exact) / np.linalg.norm(exact))


def sine(estimate: np.ndarray, exact: np.ndarray) -> float:
    """The sine of the angle between the two: the relative error at the best scale."""
    cosine = (estimate * exact).sum() / (np.linalg.norm(estimate) * np.linalg.norm(exact))
    return float(np.sqrt(max(0.0, 1.0 - cosine**2)))


@pytest.mark.parametrize(
    ("problem", "settings"),
    [
        (make_problem(0, num_turns=3), rollout_settings(**ALWAYS, num_initial_rollouts=1)),
        (make_problem(2), rollout_settings(**ALWAYS)),
        (make_problem(1), rollout_settings(**ALWAYS, branch_width=2)),
    ],
    ids=["nested forks", "two roots", "two children"],
)
def test_case_a_equal_forks_and_uniform_weights_give_the_exact_gradient(problem, settings):
    exact = exact_gradient(problem)
    (estimate,) = expected_gradients(problem, tree_distribution(problem, settings), [Estimator("uniform")])
    assert np.linalg.norm(exact) > 0.1
    assert relative_error(estimate, exact) < 1e-12


@pytest.mark.parametrize(
    ("problem", "settings"),
    [
        (make_problem(0, num_turns=3, vocab_size=3, can_stop=True), rollout_settings(**RANDOM, num_initial_rollouts=1)),
        (make_problem(1, vocab_size=3, can_stop=True), rollout_settings(**RANDOM)),
        (make_problem(1, can_stop=True), rollout_settings(**RANDOM, branch_width=2)),
        (make_problem(1, vocab_size=3), rollout_settings(**THRESHOLD)),
        (make_problem(2, turn_tokens=2), rollout_settings(**THRESHOLD)),
        (make_problem(2), rollout_settings(**PROBABILITY, branch_width=2)),
        (make_problem(1, turn_tokens=2), rollout_settings(**THRESHOLD, num_rollouts=3)),
        (make_problem(1, vocab_size=3), rollout_settings(**THRESHOLD, num_rollouts=5, branch_width="wide")),
    ],
    ids=[
        "random, nested",
        "random",
        "random, Z = 2",
        "k = 1",
        "k = 1 of 2",
        "per child",
        "k = 1, budget binds",
        "wide",
    ],
)
def test_case_b_node_decisions_and_branch_weights_give_the_exact_gradient(problem, settings):
    exact = exact_gradient(problem)
    estimators = [Estimator("branch"), Estimator("uniform")]
    branch, uniform = expected_gradients(problem, tree_distribution(problem, settings), estimators)
    assert np.linalg.norm(exact) > 0.1
    assert relative_error(branch, exact) < 1e-12
    # The weights make the difference: without them the same trees are biased.
    assert relative_error(uniform, exact) > 0.005


@pytest.mark.parametrize(
    ("problem", "settings", "weighting"),
    [
        (make_problem(0, num_turns=3, pays_turns=True), rollout_settings(**ALWAYS, num_initial_rollouts=1), "uniform"),
        (make_problem(1, vocab_size=3, can_stop=True, pays_turns=True), rollout_settings(**RANDOM), "branch"),
        (make_problem(2, turn_tokens=2, pays_turns=True), rollout_settings(**THRESHOLD), "branch"),
    ],
    ids=["equal forks", "random", "threshold"],
)
def test_where_turns_are_paid_total_and_to_go_give_the_exact_gradient(problem, settings, weighting):
    exact = exact_gradient(problem)
    only_the_end = exact_gradient(replace(problem, pays_turns=False))
    estimators = [Estimator(weighting), Estimator(weighting, to_go=True)]
    total, to_go = expected_gradients(problem, tree_distribution(problem, settings), estimators)
    assert relative_error(only_the_end, exact) > 0.1
    assert relative_error(total, exact) < 1e-12
    assert relative_error(to_go, exact) < 1e-12


REWARD, BRANCH_REWARD = Estimator("uniform"), Estimator("branch")
CENTERED = Estimator("uniform", lambda rewards, *_: group_advantages(rewards, normalize_std=False))
NORMALIZED = Estimator("uniform", lambda rewards, *_: group_advantages(rewards))
WITHIN_TREES = Estimator("uniform", tree_credit)
TIMES_ENTROPY = replace(NORMALIZED, entropy_advantage_coeff=0.2)
SAME_STATE = Estimator("uniform", same_state_credit)
SAME_STATE_WITHOUT_STD = Estimator("uniform", partial(same_state_credit, normalize_std=False))
#: (how trees are sampled, whether they are topped up, name -> an estimator of their gradient, its relative error and
#: the sine of its angle). M = 3, N = 2, alpha = tau = 0.5.
BIASED: list[tuple[RolloutSettings, bool, dict[str, tuple[Estimator, float, float]]]] = [
    (rollout_settings(num_rollouts=3), False, {"k = 1, branch weights, reward": (BRANCH_REWARD, 0.0, 0.0)}),
    (
        rollout_settings(num_rollouts=3, entropy_window=2),
        False,
        {
            "k = 2, branch weights, reward": (BRANCH_REWARD, 0.145, 0.139),
            "k = 2, uniform weights, reward": (REWARD, 0.127, 0.116),
        },
    ),
    (
        rollout_settings(num_rollouts=3, entropy_window=2),
        True,
        {
            "k = 2, branch weights, top-up, reward": (BRANCH_REWARD, 0.078, 0.073),
            "k = 2, uniform weights, top-up, reward": (REWARD, 0.142, 0.116),
            "k = 2, uniform weights, top-up, group mean": (CENTERED, 0.414, 0.156),
            "ARPO: k = 2, uniform weights, top-up, group-normalised": (NORMALIZED, 0.367, 0.277),
            "ARPO's forks, Tree-GRPO's advantage": (WITHIN_TREES, 0.403, 0.388),
            "ARPO's forks, AEPO's entropy-aware advantage": (TIMES_ENTROPY, 0.338, 0.268),
            # Here tools answer nothing: of all leaves the responses are the same, and this is twice the group's.
            "ARPO's forks, same_state": (SAME_STATE, 0.588, 0.277),
            "ARPO's forks, same_state without std": (SAME_STATE_WITHOUT_STD, 0.359, 0.156),
        },
    ),
    (
        rollout_settings(num_rollouts=3, num_initial_rollouts=1, entropy_window=2, branch_width="wide"),
        True,
        {
            "wide: N = 1, Z = 2, top-up, reward": (REWARD, 0.202, 0.165),
            "ARPO, wide: N = 1, Z = 2, group-normalised": (NORMALIZED, 0.549, 0.506),
        },
    ),
    (
        # After earlier tool responses the entropy was 0.7 of the largest; a question has 1 to 3 roots.
        rollout_settings(
            AEPOConfig(),
            num_rollouts=3,
            entropy_window=2,
            pre_monitoring_sensitivity=4.0,
            rollout_reference=RolloutReference({"python": 0.7 * np.log(2)}, 0.7 * np.log(2)),
        ),
        True,
        {"AEPO: N by the entropy, entropy-aware advantage": (TIMES_ENTROPY, 0.303, 0.256)},
    ),
    (
        rollout_settings(TreeGRPOConfig(), num_rollouts=3, entropy_window=2),
        True,
        {"Tree-GRPO: random expansion, advantage within and between": (WITHIN_TREES, 0.403, 0.398)},
    ),
    (
        rollout_settings(num_rollouts=3, branching="never"),
        True,
        {
            # The mean over M rewards contains the leaf's own: the gradient shrinks by (M - 1) / M, in its direction.
            "GRPO without std: no forks, group mean": (CENTERED, 1 / 3, 0.0),
            "GRPO: no forks, group-normalised": (NORMALIZED, 0.293, 0.238),
        },
    ),
]


@pytest.mark.slow
@pytest.mark.parametrize(("settings", "top_up", "estimators"), BIASED)
def test_the_bias_of_the_default_is_what_the_documentation_says(settings, top_up, estimators):
    """E[gradient], root mean square over three problems: V = 2, two turns of two tokens.

    Nothing is clipped, so AEPO has no gradient to keep.
    """
    errors: dict[str, list[tuple[float, float]]] = {name: [] for name in estimators}
    for problem in (make_problem(seed, turn_tokens=2) for seed in range(3)):
        exact = exact_gradient(problem)
        trees = tree_distribution(problem, settings, top_up=top_up)
        estimates = expected_gradients(problem, trees, [estimator for estimator, *_ in estimators.values()])
        for name, estimate in zip(estimators, estimates, strict=True):
            errors[name].append((relative_error(estimate, exact), sine(estimate, exact)))
    for name, (_, *expected) in estimators.items():
        error, angle = np.sqrt(np.mean(np.square(errors[name]), axis=0))
        print(f"{name:56s} relative error {error:.3f}, sine of the angle {angle:.3f}")
        assert [error, angle] == pytest.approx(expected, abs=6e-4), name
