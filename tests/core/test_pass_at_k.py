"""pass@k against enumeration."""

import itertools

import pytest

from rllib_arpo.core.pass_at_k import is_correct, pass_at_k


def test_a_partly_right_answer_is_not_correct():
    assert [is_correct(accuracy) for accuracy in (0.0, 0.8, 1.0)] == [False, False, True]


@pytest.mark.parametrize(("num_samples", "num_correct"), [(1, 0), (1, 1), (5, 0), (5, 1), (5, 3), (5, 5), (7, 2)])
def test_pass_at_k_is_the_share_of_draws_with_a_correct_sample(num_samples, num_correct):
    samples = [i < num_correct for i in range(num_samples)]
    for k in range(1, num_samples + 1):
        draws = [any(draw) for draw in itertools.combinations(samples, k)]
        assert pass_at_k(num_samples, num_correct, k) == pytest.approx(sum(draws) / len(draws), abs=1e-15)


def test_pass_at_k_of_many_samples_does_not_overflow():
    assert pass_at_k(2000, 1, 1000) == pytest.approx(0.5)
