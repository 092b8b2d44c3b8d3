"""Entropies, their rise and AEPO's entropy-aware advantage, by hand."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from rllib_arpo.core.advantages import MeanAndStd
from rllib_arpo.core.entropy import (
    ENTROPY_ESTIMATORS,
    ENTROPY_NORMALIZATIONS,
    entropy_delta,
    entropy_factor,
    entropy_statistics,
    exact_entropy,
    turn_entropies,
    unique_entropies,
)
from rllib_arpo.core.tree import StopReason, depth_first_layout
from tests.helpers.entropy import token_entropy
from tests.helpers.trees import make_trajectory, make_tree, make_turn


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


@pytest.mark.parametrize(
    ("coeff", "expected"),
    [
        # z is -1, 0 and 1.
        (0.2, [0.8, 1.0, 1.2]),
        (0.5, [0.5, 1.0, 1.5]),
        # 1 - 1.5 is floored.
        (1.5, [0.0, 1.0, 2.5]),
    ],
)
def test_the_factor_by_hand(coeff, expected):
    entropies = np.array([1.0, 2.0, 3.0])
    statistics = entropy_statistics([entropies])
    assert statistics == MeanAndStd(mean=2.0, std=1.0)
    factor = entropy_factor(torch.tensor(entropies), statistics, coeff)
    # Of the order of the 1e-6 that is added to the standard deviation.
    np.testing.assert_allclose(factor, expected, rtol=4e-6)


@pytest.mark.parametrize("entropies", [[], [0.7], [0.1] * 3])
def test_without_a_deviation_every_factor_is_one_exactly(entropies):
    entropies = np.array(entropies, dtype=np.float32).astype(np.float64)
    statistics = entropy_statistics([entropies])
    assert statistics.std == 0.0
    assert entropy_factor(torch.tensor(entropies), statistics, 0.2).tolist() == [1.0] * len(entropies)


def test_every_token_counts_once_and_masked_trajectories_do_not_count():
    tree = make_tree(
        [1, 2],
        [
            make_trajectory("0", [make_turn([3, 4], [90], entropy=0.5), make_turn([5], entropy=1.0)]),
            make_trajectory("1", [make_turn([6], entropy=9.0)], stop_reason=StopReason.DEADLINE),
            make_trajectory("0.0", [make_turn([7], entropy=1.5)], num_inherited_turns=1),
        ],
    )
    assert unique_entropies(tree, depth_first_layout(tree)).tolist() == [0.5, 0.5, 1.0, 1.5]


def test_a_turn_with_fewer_entropies_than_tokens_names_its_question_and_the_key():
    turn = replace(make_turn([3, 4, 5]), entropies=np.array([0.5, 1.0], dtype=np.float32))
    tree = make_tree([1], [make_trajectory("0", [turn])], "capital of Peru")
    message = (
        "^question capital of Peru: a turn of 3 tokens has 2 entropies; entropy_advantage_coeff needs all of them: "
        "set record_entropies='all'$"
    )
    for read in (lambda: turn_entropies(tree, turn), lambda: unique_entropies(tree, depth_first_layout(tree))):
        with pytest.raises(ValueError, match=message):
            read()
