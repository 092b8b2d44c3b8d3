"""Numbers of a nested result."""

import math

import pytest

from rllib_arpo.core.results import number_at


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
