"""The one-pass objective against an explicit loop over leaves and tokens, value and gradient, in fp64."""

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from rllib_arpo.core.advantages import ATTRIBUTIONS, leaf_ranges
from rllib_arpo.core.loss import advantage_mass, clipped_mass, importance_weight, kl_k1, kl_k3, tree_policy_objective
from rllib_arpo.core.tree import QuestionTree, TreeLayout, depth_first_layout
from tests.helpers.trees import trees

CLIP = {"clip_low": 0.2, "clip_high": 0.28}


@dataclass(frozen=True, slots=True)
class Problem:
    """A tree with one log-prob, old log-prob and reference log-prob per generated token, by node and position."""

    tree: QuestionTree
    layout: TreeLayout
    advantages: np.ndarray
    weights: np.ndarray
    log_probs: torch.Tensor
    old_log_probs: torch.Tensor
    node_of_token: np.ndarray


def make_problem(tree: QuestionTree, seed: int, spread: float) -> Problem:
    """Random advantages of both signs, unequal weights, log ratios of standard deviation `spread`."""
    layout = depth_first_layout(tree)
    rng = np.random.default_rng(seed)
    sizes = [len(tree.turn_of(n).token_ids) for n in layout.nodes]
    node_of_token = np.repeat(np.arange(len(sizes)), sizes)
    num_leaves, num_tokens = len(layout.leaves), len(node_of_token)
    old = -rng.exponential(size=num_tokens)
    return Problem(
        tree=tree,
        layout=layout,
        advantages=rng.normal(size=num_leaves),
        weights=rng.uniform(0.1, 1.0, size=num_leaves),
        log_probs=torch.tensor(old + spread * rng.normal(size=num_tokens), requires_grad=True),
        old_log_probs=torch.tensor(old),
        node_of_token=node_of_token,
    )


def per_token(problem: Problem, attribution: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    nodes = ATTRIBUTIONS[attribution](problem.advantages, problem.weights, *leaf_ranges(problem.layout))
    return tuple(torch.tensor(column[problem.node_of_token]) for column in (nodes.a_pos, nodes.a_neg, nodes.weight))


def slow_objective(
    problem: Problem, attribution: str, dual_clip: float | None, kl_coeff: float, keep_clipped_gradient: bool
) -> torch.Tensor:
    """docs/design.md's objective as written: every leaf walks its path; a shared token is visited once per leaf."""
    total = torch.zeros((), dtype=torch.float64)
    for token, i in enumerate(problem.node_of_token):
        node = problem.layout.nodes[i]
        ratio = (problem.log_probs[token] - problem.old_log_probs[token]).exp()
        clipped = ratio.clamp(1.0 - CLIP["clip_low"], 1.0 + CLIP["clip_high"])
        if keep_clipped_gradient and ratio > 1.0 + CLIP["clip_high"]:
            clipped = (1.0 + CLIP["clip_high"]) * ratio / ratio.detach()
        # The old policy stands in for the reference.
        d = problem.old_log_probs[token] - problem.log_probs[token]
        leaves = range(node.leaf_begin, node.leaf_end)
        mean = sum(problem.advantages[leaf] for leaf in leaves) / len(leaves)
        for leaf in leaves:
            advantage = problem.advantages[leaf] if attribution == "soft" else mean
            term = torch.minimum(ratio * advantage, clipped * advantage)
            if dual_clip is not None and advantage < 0:
                term = torch.clamp(term, min=dual_clip * advantage)
            total = total + problem.weights[leaf] * (term - kl_coeff * (d.exp() - d - 1.0))
    return total


@settings(max_examples=150, deadline=None)
@given(
    tree=trees(max_roots=3, max_forks=6),
    seed=st.integers(0, 2**32 - 1),
    attribution=st.sampled_from(["soft", "hard"]),
    dual_clip=st.sampled_from([None, 1.5, 3.0]),
    kl_coeff=st.sampled_from([0.0, 0.1]),
    spread=st.sampled_from([0.05, 0.5, 1.5]),
    keep=st.booleans(),
)
def test_one_pass_over_the_tree_equals_the_sum_over_leaves(tree, seed, attribution, dual_clip, kl_coeff, spread, keep):
    problem = make_problem(tree, seed, spread)
    if not len(problem.node_of_token):
        return
    a_pos, a_neg, weight = per_token(problem, attribution)
    fast = tree_policy_objective(
        problem.log_probs, problem.old_log_probs, a_pos, a_neg, **CLIP, dual_clip=dual_clip, keep_clipped_gradient=keep
    ) - kl_coeff * weight * kl_k3(problem.log_probs, problem.old_log_probs)
    slow = slow_objective(problem, attribution, dual_clip, kl_coeff, keep)
    torch.testing.assert_close(fast.sum(), slow, rtol=1e-12, atol=1e-12)
    (fast_gradient,) = torch.autograd.grad(fast.sum(), problem.log_probs)
    (slow_gradient,) = torch.autograd.grad(slow, problem.log_probs)
    torch.testing.assert_close(fast_gradient, slow_gradient, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize(
    ("ratio", "a_pos", "a_neg", "options", "value", "gradient"),
    [
        (5.0, 0.0, -2.0, {"dual_clip": 3.0}, -6.0, 0.0),
        (1.5, 2.0, -1.0, {}, 1.06, -1.5),
        # A kept gradient: above 1.28 the value is 1.28 A and the gradient 1.28 A d ln pi, however large the ratio.
        (1.5, 2.0, 0.0, {"keep_clipped_gradient": True}, 2.56, 2.56),
    ],
)
def test_objective_by_hand(ratio, a_pos, a_neg, options, value, gradient):
    log_prob = torch.tensor([math.log(ratio)], dtype=torch.float64, requires_grad=True)
    parts = (torch.tensor([a], dtype=torch.float64) for a in (a_pos, a_neg))
    objective = tree_policy_objective(log_prob, torch.zeros(1), *parts, **CLIP, **options)
    objective.sum().backward()
    assert objective.item() == pytest.approx(value, rel=1e-12)
    assert log_prob.grad.item() == pytest.approx(gradient, rel=1e-12)


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("log_ratio", [-1e4, -100.0, 100.0, 1e4])
def test_a_huge_log_ratio_stays_finite_and_has_no_gradient(log_ratio: float, keep: bool):
    log_prob = torch.tensor([log_ratio], requires_grad=True)
    one = torch.ones(1)
    objective = tree_policy_objective(log_prob, torch.zeros(1), one, -one, **CLIP, keep_clipped_gradient=keep)
    objective = objective + kl_k3(log_prob, torch.zeros(1))
    objective.sum().backward()
    assert torch.isfinite(objective).all()
    assert log_prob.grad.item() == 0.0


@pytest.mark.parametrize("keep", [False, True])
def test_a_nan_is_not_hidden(keep: bool):
    arguments = torch.tensor([float("nan")]), torch.zeros(1), torch.ones(1), torch.zeros(1)
    assert tree_policy_objective(*arguments, **CLIP, keep_clipped_gradient=keep).isnan().all()


def test_importance_weight_is_capped_and_has_no_gradient():
    old = torch.tensor([0.0, 0.0, 0.0, 0.0], requires_grad=True)
    engine = torch.tensor([0.0, math.log(2.0), -math.log(1.5), -200.0])
    weight = importance_weight(old, engine, cap=2.0)
    torch.testing.assert_close(weight, torch.tensor([1.0, 0.5, 1.5, 2.0]))
    assert not weight.requires_grad


def test_kl_estimators_by_hand():
    log_probs, reference = torch.log(torch.tensor([0.5, 0.25])), torch.log(torch.tensor([0.25, 0.5]))
    torch.testing.assert_close(kl_k1(log_probs, reference), torch.tensor([math.log(2.0), -math.log(2.0)]))
    expected = torch.tensor([0.5 + math.log(2.0) - 1.0, 2.0 - math.log(2.0) - 1.0])
    torch.testing.assert_close(kl_k3(log_probs, reference), expected)


def test_what_is_clipped_is_counted_by_advantage_mass():
    ratios = torch.tensor([1.5, 1.5, 0.5, 0.5, 1.0, 5.0], dtype=torch.float64)
    a_pos = torch.tensor([3.0, 1.0, 2.0, 0.0, 1.0, 0.0], dtype=torch.float64)
    a_neg = torch.tensor([0.0, -1.0, 0.0, -4.0, -3.0, -5.0], dtype=torch.float64)
    arguments = ratios.log(), torch.zeros(6), a_pos, a_neg
    assert clipped_mass(*arguments, **CLIP).tolist() == [3.0, 1.0, 0.0, 4.0, 0.0, 0.0]
    assert clipped_mass(*arguments, **CLIP, dual_clip=3.0).tolist() == [3.0, 1.0, 0.0, 4.0, 0.0, 5.0]
    # Then no positive part loses its gradient.
    kept = clipped_mass(*arguments, **CLIP, dual_clip=3.0, keep_clipped_gradient=True)
    assert kept.tolist() == [0.0, 0.0, 0.0, 4.0, 0.0, 5.0]
    assert advantage_mass(a_pos, a_neg).tolist() == [3.0, 2.0, 2.0, 4.0, 4.0, 5.0]
