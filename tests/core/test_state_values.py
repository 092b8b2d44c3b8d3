"""Least squares by hand."""

import pytest
import torch

from rllib_arpo.core.state_values import regression_sums, state_features, value_weights


def test_states_are_scaled_to_length_one():
    features = state_features(torch.tensor([[3.0, -4.0], [0.0, 0.5]]))
    torch.testing.assert_close(features, torch.tensor([[0.6, -0.8, 1.0], [0.0, 1.0, 1.0]]).double())


def test_two_states_by_hand():
    """With a bias: 2 (u + b - 1)^2 + (v + b)^2 + u^2 + v^2 + b^2 is least where

    3u + 2b = 2; 2v + b = 0; 2u + v + 4b = 2.
    """
    features = torch.tensor([[1.0, 0.0, 1.0], [0.0, 1.0, 1.0]]).double()
    sums = regression_sums(features, torch.tensor([1.0, 0.0]).double(), torch.tensor([2.0, 1.0]).double())
    assert sums.tolist() == [[2, 0, 2, 2], [0, 1, 1, 0], [2, 1, 3, 2]]
    assert value_weights(sums).tolist() == pytest.approx([6 / 13, -2 / 13, 4 / 13])


def test_without_states_every_value_is_zero():
    nothing = regression_sums(torch.zeros(0, 3).double(), torch.zeros(0).double(), torch.zeros(0).double())
    assert value_weights(nothing).tolist() == [0.0, 0.0, 0.0]
