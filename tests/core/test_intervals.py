"""Intervals against scipy's, and against the truth."""

import numpy as np
import pytest
from scipy.stats import ttest_1samp

from rllib_arpo.core.intervals import Estimate, estimate_all, paired_differences

RNG = np.random.default_rng(0)


def test_the_interval_of_one_task_is_that_of_the_t_test():
    values = RNG.normal(1.0, 2.0, (7, 3))
    expected = ttest_1samp(values.mean(axis=1), 0).confidence_interval(0.95)
    found = estimate_all({"reward": values})["reward"]
    assert (found.low, found.high) == (pytest.approx(expected.low), pytest.approx(expected.high))
    assert (found.value, found.num_questions) == (pytest.approx(values.mean()), 7)


def test_differences_are_paired_by_question():
    first, second = {"a": np.array([0.0, 10.0]), "b": np.zeros(2)}, {"a": np.array([1.0, 11.0]), "c": np.zeros(2)}
    assert paired_differences(first, second) == {"a": Estimate(1.0, 1.0, 1.0, 2)}
    with pytest.raises(ValueError, match="a: 2 and 1 questions cannot be paired"):
        paired_differences(first, {"a": np.zeros(1)})


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        (np.zeros((0, 2)), Estimate(None, None, None, 0)),
        (np.array([0.5]), Estimate(0.5, None, None, 1)),
        # Samples of a question stay together: nothing varies between questions.
        (np.array([[0.0, 1.0], [1.0, 0.0]]), Estimate(0.5, 0.5, 0.5, 2)),
    ],
)
def test_few_or_equal_questions(values, expected):
    assert estimate_all({"": values})[""] == expected
