import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rllib_arpo.arpo_config import ARPOConfig
from rllib_arpo.core.branching import (
    BRANCHING_RULES,
    BranchingParams,
    NodeEvidence,
    branch_probability,
    children_per_fork,
    monitored_rollouts,
    num_forks,
    threshold_of,
)
from rllib_arpo.core.entropy import ENTROPY_NORMALIZATIONS, TOP_K, entropy_delta, top_k_entropy


class ScriptedDraws:
    """Stands in for `np.random.Generator` where the draws must be known."""

    def __init__(self, *draws: float):
        self.draws = list(draws)

    def random(self, size: int | None = None):
        if size is None:
            return self.draws.pop(0)
        return np.array([self.draws.pop(0) for _ in range(size)])


NO_DRAWS = ScriptedDraws()


@pytest.mark.parametrize(("params", "delta", "draws", "children"), [
    # P = 0.25 + 0.5 dH > 0.5 is dH > 0.5.
    *((BranchingParams("threshold", 3, 0.25, 0.5, 0.5), d, (), n) for d, n in ((-1.0, 0), (0.5, 0), (0.51, 3))),
    # P = 0.5 + 0.2 * 0.5 = 0.6, drawn per child.
    (BranchingParams("probability", 3, 0.5, 0.2), 0.5, (0.59, 0.61, 0.1), 2),
    (BranchingParams("probability", 3, 0.5, 0.2), 0.5, (0.99, 0.61, 0.7), 0),
    # Drawn once per node, whatever the entropy.
    *((BranchingParams("random", 3, random_fork_probability=0.25), d, (0.24,), 3) for d in (-1.0, 1.0)),
    *((BranchingParams("random", 3, random_fork_probability=0.25), d, (0.25,), 0) for d in (-1.0, 1.0)),
    # At the first response, whatever the entropy.
    *((BranchingParams("depth", 3, branch_depth=1), d, (), 3) for d in (-1.0, 1.0)),
    *((BranchingParams("depth", 3, branch_depth=2), d, (), 0) for d in (-1.0, 1.0)),
])  # fmt: skip
def test_a_rule_by_hand(params, delta, draws, children):
    assert num_forks(NodeEvidence(delta), 10, params, ScriptedDraws(*draws)) == children


def test_permuted_takes_an_earlier_rise_in_place_of_the_own():
    params = BranchingParams("permuted", 3, 0.25, 0.5, 0.5)  # P > 0.5 is dH > 0.5.
    rng = np.random.default_rng(0)
    for earlier, children in (((0.6,), 3), ((0.4,), 0)):
        assert {num_forks(NodeEvidence(own, earlier=earlier), 10, params, rng) for own in (-1.0, 1.0)} == {children}
    drawn = [num_forks(NodeEvidence(1.0, earlier=(0.6, 0.4, 0.0, 0.4)), 10, params, rng) for _ in range(2000)]
    # A quarter; the standard deviation of the mean is 0.01.
    assert set(drawn) == {0, 3} and 0.2 < np.mean(drawn) / 3 < 0.3
    # Nothing is known yet.
    assert [num_forks(NodeEvidence(own), 10, params, NO_DRAWS) for own in (0.4, 0.6)] == [0, 3]


@pytest.mark.parametrize("rule", sorted(BRANCHING_RULES))
def test_the_budget_caps_the_children_of_every_rule(rule: str):
    always = BranchingParams(rule, 3, branch_base_probability=1.0, random_fork_probability=1.0, branch_depth=1)
    rng = np.random.default_rng(0)
    created = [num_forks(NodeEvidence(0.5), budget, always, rng) for budget in (1, 2, 3, 4)]
    assert created == ([0, 0, 0, 0] if rule == "never" else [1, 2, 3, 3])
    # Without a budget nothing is drawn.
    assert num_forks(NodeEvidence(0.5), 0, always, NO_DRAWS) == 0


@pytest.mark.parametrize(
    ("rollouts", "roots", "width"),
    [(16, 2, 7), (16, 4, 3), (16, 3, 5), (16, 8, 1), (16, 12, 1), (16, 16, 1), (8, 1, 7)],
)
def test_wide_shares_the_budget_among_as_many_responses_as_there_are_roots(rollouts: int, roots: int, width: int):
    assert children_per_fork("wide", rollouts, roots) == width
    assert children_per_fork(3, rollouts, roots) == 3


@settings(max_examples=200, deadline=None)
@given(
    seed=st.integers(0, 2**32 - 1),
    alpha=st.floats(0.0, 1.0),
    beta=st.floats(1e-12, 1e6),
    scale=st.sampled_from([1.0, 1e-9]),
    vocab_size=st.sampled_from([32, 49_152, 151_936]),
)
def test_with_alpha_equal_to_tau_the_threshold_is_invariant_to_beta_and_normalization(
    seed: int, alpha: float, beta: float, scale: float, vocab_size: int
):
    rng = np.random.default_rng(seed)
    after, initial = scale * rng.uniform(size=(2, 16))
    if seed % 8 == 0:
        initial = after.copy()
    params = BranchingParams("threshold", 2, alpha, beta, alpha)
    decisions = {
        num_forks(NodeEvidence(entropy_delta(after, initial, vocab_size, normalization)), 9, variant, NO_DRAWS)
        for normalization in ENTROPY_NORMALIZATIONS
        for variant in (params, replace(params, branch_entropy_weight=0.2))
    }
    assert decisions == {2 if (after - initial).sum() > 0 else 0}


def authors_probability(initial: list[list[float]], after: list[list[float]], vocab_size: int) -> float:
    """P as the authors' rollout code computes it, of the probabilities of the likeliest tokens, token by token."""

    def entropy(tokens: list[list[float]]) -> float:
        total = 0.0
        for likeliest in tokens[:20]:
            total += -sum(p * math.log(p) for p in likeliest[:10])
        return total / math.log(vocab_size)

    return 0.5 + 0.2 * (entropy(after) - entropy(initial))


def test_the_defaults_with_top_k_entropies_are_the_authors_formula():
    rng = np.random.default_rng(0)
    vocab_size = 151_936
    windows = []
    for scale in (8.0, 3.0):
        logits = torch.tensor(rng.normal(scale=scale, size=(25, 2000)))
        windows.append(torch.log_softmax(logits, -1))
    initial, after = windows
    params, config = BranchingParams("probability"), ARPOConfig()
    k = config.entropy_window
    delta = entropy_delta(
        top_k_entropy(after)[:k].numpy(), top_k_entropy(initial)[:k].numpy(), vocab_size, config.entropy_normalization
    )
    likeliest = [w.exp().sort(descending=True).values[:, :TOP_K].tolist() for w in windows]
    expected = authors_probability(*likeliest, vocab_size)
    assert branch_probability(NodeEvidence(delta), params) == pytest.approx(expected, rel=1e-12)
    # The example tells something: the rise moves P far away from alpha.
    assert expected > 0.65


def test_an_automatic_threshold_is_p_at_the_rise():
    assert threshold_of(0.7, 1.0, 0.5, 0.2) == 0.7
    assert threshold_of("auto", None, 0.4, 0.2) == 0.5
    rise = 0.3
    params = BranchingParams("threshold", 1, 0.4, 0.2, threshold_of("auto", rise, 0.4, 0.2))
    assert [num_forks(NodeEvidence(d), 1, params, NO_DRAWS) for d in (0.29, 0.31)] == [0, 1]


@given(rise=st.floats(-10.0, 10.0), alpha=st.floats(0.0, 1.0), beta=st.floats(1e-12, 1e6))
@settings(deadline=None)
@example(rise=1.1, alpha=0.5, beta=0.2)
def test_a_rise_that_equals_the_wanted_one_does_not_exceed_an_automatic_threshold(rise, alpha, beta):
    """Where a question's responses all rise alike, none is among the highest."""
    params = BranchingParams("threshold", 1, alpha, beta, threshold_of("auto", rise, alpha, beta))
    assert num_forks(NodeEvidence(rise), 1, params, NO_DRAWS) == 0


def test_pre_monitoring_by_hand():
    # sigma(0) = 1/2; sigma(2) = 0.8808: 16 * 0.8808 = 14.09; sigma(-2) = 0.1192: 1.907; sigma(-9) of 16: 0.002 -> 1.
    assert [monitored_rollouts(d, 16, 2.0) for d in (0.0, 1.0, -1.0, -4.5, 4.5)] == [8, 14, 2, 1, 16]
    # Halves go up: 5 * 1/2 = 2.5.
    assert monitored_rollouts(0.0, 5, 1.0) == 3
    assert [monitored_rollouts(d, 4, 1.0) for d in (-1e9, 1e9)] == [1, 4]
