"""The bootstrap against distributions that are known exactly."""

from __future__ import annotations

import numpy as np
import pytest
from scipy.stats import binom

from rllib_arpo.evaluation.bootstrap import Estimate, Kind, average_over_tasks, estimate_all, paired_differences, tail


def estimate(values: np.ndarray, **options) -> Estimate:
    """`estimate_all` of a single metric."""
    return estimate_all({"": values}, **options)[""]


@pytest.mark.parametrize(("n", "right"), [(50, 5), (40, 20), (200, 190)])
def test_the_bootstrap_of_zeros_and_ones_is_a_binomial_distribution(n, right):
    """The mean of n draws from `right` ones among n values is Binomial(n, right / n) / n, exactly."""
    values = np.r_[np.ones(right), np.zeros(n - right)]
    found = estimate(values)
    exact = binom.ppf([tail(n), 1 - tail(n)], n, right / n) / n
    assert found.value == right / n
    # A percentile of 10,000 resamples may fall one step beside the exact one.
    assert np.abs(np.array([found.low, found.high]) - exact).max() <= 1 / n + 1e-12
    assert (found.kind, found.num_questions, found.seed_std) == (Kind.BOOTSTRAP, n, None)


def test_the_interval_of_a_large_sample_is_that_of_the_normal_distribution():
    values = np.random.default_rng(1).normal(3.0, 2.0, 2000)
    found = estimate(values)
    half = 1.95996 * values.std() / np.sqrt(2000)
    assert found.low == pytest.approx(values.mean() - half, abs=0.03 * half)
    assert found.high == pytest.approx(values.mean() + half, abs=0.03 * half)


def test_intervals_hold_the_truth_as_often_as_they_say():
    """60 questions with 4 samples: chances differ between questions, outcomes between seeds."""
    rng, held = np.random.default_rng(0), 0
    for trial in range(400):
        chances = rng.beta(0.5, 1.5, 60)
        found = estimate((rng.random((60, 4)) < chances[:, None]).astype(float), seed=trial, num_resamples=1000)
        held += found.low <= 0.25 <= found.high
    assert 0.91 <= held / 400 <= 0.98


def test_intervals_of_five_values_hold_the_truth_too():
    rng = np.random.default_rng(0)
    found = [estimate(rng.normal(1.0, 2.0, 5), seed=trial) for trial in range(600)]
    held = np.mean([one.low <= 1.0 <= one.high for one in found])
    # Plain percentiles: 0.84.
    assert 0.9 <= held <= 0.97
    assert (tail(5), tail(10**6)) == (pytest.approx(0.00095, abs=1e-4), pytest.approx(0.025, abs=1e-5))


def test_samples_of_a_question_stay_together():
    """Every question's samples have the same mean: nothing varies between questions, however much the samples do."""
    found = estimate(np.array([[0.0, 1.0], [1.0, 0.0], [0.0, 1.0], [1.0, 0.0]]))
    assert found == Estimate(0.5, 0.5, 0.5, Kind.ALL_EQUAL, 4, 0.0)


def test_spread_between_seeds_by_hand():
    # Sample 0 of all questions: mean 1; sample 1: mean 0.5; sample 2: mean 0. Their standard deviation is 0.5.
    assert estimate(np.array([[1.0, 1.0, 0.0], [1.0, 0.0, 0.0]])).seed_std == pytest.approx(0.5)
    assert estimate(np.array([[1.0], [0.0]])).seed_std is None


def test_one_question_has_a_value_and_no_interval():
    assert estimate(np.array([[0.0, 1.0]])) == Estimate(0.5, None, None, Kind.ONE_QUESTION, 1, pytest.approx(0.5**0.5))
    assert estimate(np.array([0.25])) == Estimate(0.25, None, None, Kind.ONE_QUESTION, 1)


def test_no_question_has_no_value():
    assert estimate(np.zeros(0)) == Estimate(None, None, None, Kind.NO_QUESTION, 0)
    assert estimate(np.zeros((0, 3))) == Estimate(None, None, None, Kind.NO_QUESTION, 0)


@pytest.mark.parametrize("value", [0.0, 1.0, -1.0, 1e9])
def test_equal_values_are_said_to_be_equal(value):
    assert estimate(np.full(30, value)) == Estimate(value, value, value, Kind.ALL_EQUAL, 30)


def test_a_small_spread_on_large_values_is_not_rounded_away():
    found = estimate(1e9 + np.arange(100.0))
    assert found.kind is Kind.BOOTSTRAP
    assert 1e9 + 40 < found.low < 1e9 + 49.5 < found.high < 1e9 + 60


def test_the_bounds_of_a_share_are_shares():
    for n in range(10, 60):
        shares = np.r_[np.ones(2), np.zeros(n)]
        low = estimate(shares, num_resamples=500).low
        assert low >= 0 and not np.signbit(low)
        assert estimate(1 - shares, num_resamples=500).high <= 1


def test_intervals_are_reproducible_and_independent_of_company():
    values = np.random.default_rng(2).random((20, 3))
    other = np.random.default_rng(3).random(7)
    together = estimate_all({"a": values, "b": other, "c": np.ones(20)})
    assert together["a"] == estimate(values) == estimate(values)
    assert together["b"] == estimate(other)


def test_paired_differences_know_that_questions_are_the_same():
    """Hard and easy questions differ by much, the two models by 0.1 on every question but two."""
    first = np.tile([0.0, 0.5, 1.0, 0.2], 25)
    second = first + np.r_[np.full(98, 0.1), 0.0, 0.2]
    found = paired_differences({"a": first}, {"a": second, "b": first})
    assert list(found) == ["a"]
    assert found["a"].value == pytest.approx(0.1)
    assert 0.095 < found["a"].low < 0.1 < found["a"].high < 0.105


def test_a_constant_difference_is_said_to_be_constant():
    found = paired_differences({"a": np.array([0.1, 0.2, 0.7])}, {"a": np.array([0.4, 0.5, 1.0])})["a"]
    assert (found.kind, found.value) == (Kind.ALL_EQUAL, pytest.approx(0.3))


def test_different_numbers_of_samples_can_be_paired_and_of_questions_not():
    found = paired_differences({"a": np.array([[0.0, 1.0], [1.0, 1.0]])}, {"a": np.array([[1.0], [1.0]])})["a"]
    assert found.value == pytest.approx(0.25)
    with pytest.raises(ValueError, match="a: 2 and 3 questions cannot be paired"):
        paired_differences({"a": np.zeros(2)}, {"a": np.zeros(3)})


def test_the_average_of_one_task_is_the_estimate_of_its_mean():
    for values in (np.random.default_rng(4).random((30, 2)), np.ones(5), np.array([0.5]), np.zeros(0), np.arange(4.0)):
        assert average_over_tasks([values]) == estimate(values)


def test_the_average_weighs_tasks_equally_however_many_questions_they_have():
    small, large = np.array([0.0, 1.0, 1.0, 1.0]), np.tile([0.0, 1.0], 200)
    found = average_over_tasks([small, large])
    assert (found.value, found.kind, found.num_questions, found.seed_std) == (0.625, Kind.BOOTSTRAP, 404, None)
    assert average_over_tasks([small, np.ones(7)]).value == 0.875
    assert average_over_tasks([np.ones(3), np.zeros(7)]) == Estimate(0.5, 0.5, 0.5, Kind.ALL_EQUAL, 10)
    assert average_over_tasks([np.array([1.0]), large]) == Estimate(0.75, None, None, Kind.ONE_QUESTION, 401)
    assert average_over_tasks([np.zeros(0), large]) == Estimate(None, None, None, Kind.NO_QUESTION, 400)


def test_the_interval_of_a_large_average_is_that_of_the_normal_distribution():
    rng = np.random.default_rng(1)
    first, second = rng.normal(3.0, 2.0, 300), rng.normal(1.0, 4.0, 600)
    found = average_over_tasks([first, second])
    half = 1.95996 * np.sqrt(first.var() / 300 + second.var() / 600) / 2
    center = (first.mean() + second.mean()) / 2
    assert found.low == pytest.approx(center - half, abs=0.03 * half)
    assert found.high == pytest.approx(center + half, abs=0.03 * half)


def test_intervals_of_averages_of_small_tasks_hold_the_truth_as_often_as_they_say():
    rng, held = np.random.default_rng(0), 0
    for trial in range(600):
        found = average_over_tasks([rng.normal(1.0, 3.0, 5), rng.normal(2.0, 1.0, 8)], trial, 1000)
        held += found.low <= 1.5 <= found.high
    # Plain percentiles: 0.845.
    assert 0.9 <= held / 600 <= 0.97


def test_seeds_vary_the_average_together():
    # Sample 0: means 1 and 0.5, average 0.75; sample 1: 0 and 0.5, average 0.25.
    tasks = [np.array([[1.0, 0.0], [1.0, 0.0]]), np.array([[1.0, 0.0], [0.0, 1.0]])]
    assert average_over_tasks(tasks).seed_std == pytest.approx(0.5 / 2**0.5)
    assert average_over_tasks([tasks[0], np.array([[1.0], [0.0]])]).seed_std is None
