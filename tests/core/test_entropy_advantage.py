"""AEPO's entropy-aware advantage by hand."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from rllib_arpo.core.entropy_advantage import (
    EntropyStatistics,
    entropy_factor,
    entropy_statistics,
    turn_entropies,
    unique_entropies,
)
from rllib_arpo.core.tree import StopReason, depth_first_layout
from tests.helpers.trees import make_trajectory, make_tree, make_turn


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
    assert statistics == EntropyStatistics(mean=2.0, std=1.0)
    factor = entropy_factor(torch.tensor(entropies), statistics, coeff)
    # Of the order of the 1e-6 that is added to the standard deviation.
    np.testing.assert_allclose(factor, expected, rtol=4e-6)


def test_the_statistics_are_those_of_all_questions_together():
    # Deviations -2, -1, 0, 3 from the mean 3.
    statistics = entropy_statistics([np.array([1.0, 6.0]), np.array([]), np.array([2.0, 3.0])])
    assert statistics == EntropyStatistics(mean=3.0, std=pytest.approx(np.sqrt(14 / 3)))


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
        "^question capital of Peru: a turn of 3 tokens has 2 entropies; entropy_advantage_coeff needs them all, "
        "record_entropies='all'$"
    )
    for read in (lambda: turn_entropies(tree, turn), lambda: unique_entropies(tree, depth_first_layout(tree))):
        with pytest.raises(ValueError, match=message):
            read()
