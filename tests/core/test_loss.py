"""The objective of a token by hand, value and gradient; `tests/learner/plain.py` sums it over leaves and tokens."""

import math

import pytest
import torch

from rllib_arpo.core.loss import advantage_mass, clipped_mass, importance_weight, kl_k1, kl_k3, tree_policy_objective

CLIP = {"clip_low": 0.2, "clip_high": 0.28}


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
