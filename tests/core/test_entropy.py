import math

import numpy as np
import pytest
import torch

from rllib_arpo.core.entropy import (
    ENTROPY_ESTIMATORS,
    ENTROPY_NORMALIZATIONS,
    entropy_delta,
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
    # Fewer than ten tokens: the whole vocabulary.
    few = torch.full((4,), 0.25, dtype=torch.float64).log()
    assert ENTROPY_ESTIMATORS["top_k"](few).item() == pytest.approx(math.log(4))


def test_normalizations_by_hand():
    after, initial = np.array([2.0, 1.0, 0.5]), np.array([1.0, 0.5, 0.5])
    # Differences 1, 0.5, 0: mean 0.5, sum 1.5.
    assert entropy_delta(after, initial, 1000) == pytest.approx(1.5 / math.log(1000), rel=1e-14)
    assert entropy_delta(after, initial, 1000, "mean_log_vocab") == pytest.approx(0.5 / math.log(1000), rel=1e-14)
    assert entropy_delta(after, initial, 1000, "vocab") == pytest.approx(1.5 / 1000, rel=1e-14)


@pytest.mark.parametrize("normalization", sorted(ENTROPY_NORMALIZATIONS))
def test_windows_of_unequal_length_are_compared_where_both_have_tokens(normalization: str):
    long, short = np.array([3.0, 1.0, 9.0, 9.0]), np.array([1.0, 2.0])
    assert entropy_delta(long, short, 100, normalization) == entropy_delta(long[:2], short, 100, normalization)
    assert entropy_delta(short, long, 100, normalization) == entropy_delta(short, long[:2], 100, normalization)
    assert entropy_delta(long, short, 100, normalization) > 0
    # An empty window shows no rise.
    assert entropy_delta(np.array([]), short, 100, normalization) == 0.0
    assert entropy_delta(short, np.array([]), 100, normalization) == 0.0


def test_a_running_delta_by_hand():
    # 2.0 and 1.0 over 1.2 nats a token: the sum of the rises is 0.6, their mean 0.3.
    window = np.array([2.0, 1.0])
    assert running_delta(window, 1.2, 1000) == pytest.approx(0.6 / math.log(1000), rel=1e-14)
    assert running_delta(window, 1.2, 1000, "mean_log_vocab") == pytest.approx(0.3 / math.log(1000), rel=1e-14)
    assert running_delta(window, 1.2, 1000, "vocab") == pytest.approx(0.6 / 1000, rel=1e-14)
    assert running_delta(np.array([]), 1.2, 1000) == 0.0
