"""What follows from the declaration of a metric, and numbers of a result."""

import math

import pytest

from rllib_arpo.core.metric import Metric, mean, measure, number_at, quantile

DEPTH = [
    Metric("depth/mean", "turns above the node", mean),
    Metric("depth/p10", "turns above the node", quantile(0.1)),
    Metric("forks", "all of them", len),
]


def test_a_metric_that_has_nothing_to_measure_is_left_out():
    assert measure(DEPTH, [1, 2, 6]) == {"depth/mean": 3.0, "depth/p10": 1.2, "forks": 3}
    assert measure(DEPTH, [], "search/") == {"search/forks": 0}


@pytest.mark.parametrize(
    ("result", "value"),
    [
        ({"a": {"b": 1}}, 1.0),
        ({"a": 1.0}, None),
        ({"a": {"b": None}}, None),
        ({}, None),
        ({"a": {"b": math.nan}}, None),
    ],
)
def test_the_number_at_a_place(result, value):
    assert number_at(result, "a", "b") == value
    assert number_at(result, "a/b") == value
