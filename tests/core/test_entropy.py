from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from rllib_arpo.core.entropy import (
    ENTROPY_ESTIMATORS,
    ENTROPY_NORMALIZATIONS,
    entropy_delta,
    entropy_level,
    exact_entropy,
    running_delta,
)
from tests.helpers.entropy import token_entropy


def test_entropy_of_distributions_known_in_closed_form():
    logits = torch.tensor([[0.0, 0.0, 0.0, 0.0], [100.0, 0.0, 0.0, 0.0], [math.log(2.0), 0.0, 0.0, -math.inf]])
    # p = (1/2, 1/4, 1/4): 1.5 bits.
    expected = torch.tensor([math.log(4.0), 0.0, 1.5 * math.log(2.0)])
    torch.testing.assert_close(exact_entropy(torch.log_softmax(logits, -1)), expected)
    # The twin that other tests compare with.
    torch.testing.assert_close(token_entropy(logits), expected)


def test_the_twin_applies_the_temperature_before_the_softmax():
    # At T = 2 the logits (2 ln 3, 0) are the distribution (3/4, 1/4).
    entropy = token_entropy(torch.tensor([2.0 * math.log(3.0), 0.0]), temperature=2.0)
    assert entropy.item() == pytest.approx(-(0.75 * math.log(0.75) + 0.25 * math.log(0.25)), rel=1e-6)


def test_gradient_of_the_entropy_with_an_impossible_token():
    logits = torch.tensor([0.3, -1.0, -math.inf, 2.0], dtype=torch.float64, requires_grad=True)
    exact_entropy(torch.log_softmax(logits, -1)).backward()
    # dH/dz_v = -p_v (ln p_v + H); an impossible token has no gradient.
    p = torch.softmax(logits.detach(), -1)
    log_p = torch.log_softmax(logits.detach(), -1).nan_to_num(neginf=0.0)
    expected = -p * (log_p - (p * log_p).sum())
    torch.testing.assert_close(logits.grad, expected, rtol=1e-12, atol=1e-15)


def test_estimators_of_a_distribution_known_in_closed_form():
    # Half of the mass on one token, the rest flat over 16: the nine of them that are among the top ten count.
    probabilities = torch.tensor([0.5] + [1 / 32] * 16 + [0.0] * 3, dtype=torch.float64)
    exact = 0.5 * math.log(2) + 0.5 * math.log(32)
    top_k = 0.5 * math.log(2) + 9 / 32 * math.log(32)
    assert {
        name: estimate(probabilities.log()).item() for name, estimate in ENTROPY_ESTIMATORS.items()
    } == pytest.approx({"exact": exact, "top_k": top_k}, rel=1e-12)


def test_estimators_agree_with_the_sorted_sum_over_the_logits():
    logits = torch.randn(7, 40, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    probabilities = torch.softmax(logits, -1)
    terms = [sorted(row, reverse=True)[:10] for row in probabilities.tolist()]
    top_ten = torch.tensor([-sum(p * math.log(p) for p in row) for row in terms], dtype=torch.float64)
    plain = -(probabilities * probabilities.log()).sum(-1)
    torch.testing.assert_close(ENTROPY_ESTIMATORS["exact"](probabilities.log()), plain)
    torch.testing.assert_close(ENTROPY_ESTIMATORS["top_k"](probabilities.log()), top_ten)
    # Fewer than ten tokens: the whole vocabulary.
    few = torch.log_softmax(logits[:, :8], -1)
    torch.testing.assert_close(ENTROPY_ESTIMATORS["top_k"](few), exact_entropy(few))


def test_normalizations_by_hand():
    after, initial = np.array([2.0, 1.0, 0.5]), np.array([1.0, 0.5, 0.5])
    # Differences 1, 0.5, 0: mean 0.5, sum 1.5.
    assert entropy_delta(after, initial, 1000) == pytest.approx(1.5 / math.log(1000), rel=1e-14)
    assert entropy_delta(after, initial, 1000, "mean_log_vocab") == pytest.approx(0.5 / math.log(1000), rel=1e-14)
    assert entropy_delta(after, initial, 1000, "vocab") == pytest.approx(1.5 / 1000, rel=1e-14)


def test_the_extremes_of_mean_log_vocab_are_plus_and_minus_one():
    certain, uniform = np.zeros(4), np.full(4, math.log(50_000))
    assert entropy_delta(uniform, certain, 50_000, "mean_log_vocab") == pytest.approx(1.0)
    assert entropy_delta(certain, uniform, 50_000, "mean_log_vocab") == pytest.approx(-1.0)


@pytest.mark.parametrize("normalization", sorted(ENTROPY_NORMALIZATIONS))
def test_windows_of_unequal_length_are_compared_where_both_have_tokens(normalization: str):
    long, short = np.array([3.0, 1.0, 9.0, 9.0]), np.array([1.0, 2.0])
    assert entropy_delta(long, short, 100, normalization) == entropy_delta(long[:2], short, 100, normalization)
    assert entropy_delta(short, long, 100, normalization) == entropy_delta(short, long[:2], 100, normalization)
    assert entropy_delta(long, short, 100, normalization) > 0


@pytest.mark.parametrize("normalization", sorted(ENTROPY_NORMALIZATIONS))
def test_an_empty_window_shows_no_rise(normalization: str):
    assert entropy_delta(np.array([]), np.array([1.0]), 100, normalization) == 0.0
    assert entropy_delta(np.array([1.0]), np.array([]), 100, normalization) == 0.0


@pytest.mark.parametrize("normalization", sorted(ENTROPY_NORMALIZATIONS))
def test_the_level_of_a_difference_is_the_difference_of_levels(normalization: str):
    after, initial = np.array([2.0, 1.0, 0.5]), np.array([1.0, 0.7, 0.1])
    levels = [entropy_level(window, 1000, normalization) for window in (after, initial)]
    assert entropy_delta(after, initial, 1000, normalization) == pytest.approx(levels[0] - levels[1], rel=1e-12)
    assert entropy_level(np.array([]), 1000, normalization) == 0.0


def test_a_running_delta_by_hand():
    # 2.0 and 1.0 over 1.2 nats a token: the sum of the rises is 0.6, their mean 0.3.
    window = np.array([2.0, 1.0])
    assert running_delta(window, 1.2, 1000) == pytest.approx(0.6 / math.log(1000), rel=1e-14)
    assert running_delta(window, 1.2, 1000, "mean_log_vocab") == pytest.approx(0.3 / math.log(1000), rel=1e-14)
    assert running_delta(window, 1.2, 1000, "vocab") == pytest.approx(0.6 / 1000, rel=1e-14)
    assert running_delta(np.array([]), 1.2, 1000) == 0.0


@pytest.mark.parametrize("normalization", sorted(ENTROPY_NORMALIZATIONS))
@pytest.mark.parametrize("num_tokens", [1, 7, 20])
def test_a_window_at_the_level_of_the_history_shows_no_rise_whatever_its_length(normalization: str, num_tokens: int):
    assert running_delta(np.full(num_tokens, 0.75), 0.75, 100, normalization) == 0.0
    assert running_delta(np.full(num_tokens, 0.76), 0.75, 100, normalization) > 0.0
