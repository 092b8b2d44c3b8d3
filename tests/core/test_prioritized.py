"""Prioritized sampling: which questions are asked again, by hand."""

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest

from rllib_arpo.core.prioritized import PrioritizedDraws, num_repeats, pass_rate
from rllib_arpo.core.tree import QuestionTree, StopReason
from tests.helpers.trees import make_trajectory, make_tree, make_turn


def tree(question: int, *accuracies: float, masked: int = 0, reward: Sequence[float] = ()) -> QuestionTree:
    stops = [StopReason.ANSWER] * len(accuracies) + [StopReason.BROKEN_TOOL] * masked
    rewards = reward or [0.0] * len(stops)
    trajectories = [
        replace(make_trajectory(str(i), [make_turn([1])], rewards[i], stop_reason=stop), accuracy=accuracy)
        for i, (stop, accuracy) in enumerate(zip(stops, (*accuracies, *[1.0] * masked), strict=True))
    ]
    return replace(make_tree([1], trajectories), question_id=f"q{question}")


def drawn(draws: PrioritizedDraws, places: range) -> list[int]:
    draws.draw(places)
    return [draws.question_at(place) for place in places]


def test_the_pass_rate_is_the_share_of_right_trajectories_that_count():
    assert pass_rate(tree(0, 1.0, 0.0, 0.5, 1.0, masked=3)) == 0.5  # A half right answer is not right.
    assert pass_rate(tree(0, masked=1)) is None


@pytest.mark.parametrize(("accuracies", "reward", "rate"), [
    ((0.6, 0.6, 0.2, 0.0), (), 0.5), ((0.6, 0.6), (), 0.0), ((0.0, 0.0), (-1.0, 0.0), 0.0),
    ((0.0,) * 4, (3.0, 1.0, 1.0, 0.0), 0.25),
])  # fmt: skip
def test_where_no_trajectory_is_right_those_above_the_middle_pass(accuracies, reward, rate):
    """Rewards are graded: otherwise such questions would never be asked again, whatever they teach."""
    assert pass_rate(tree(0, *accuracies, reward=reward)) == rate


RATES = {
    0: (1.0, 1.0, 1.0, 1.0),
    1: (1.0, 0.0, 0.0, 0.0),
    2: (1.0, 1.0, 0.0, 0.0),
    3: (1.0, 1.0, 1.0, 0.0),
    4: (0.0,) * 4,
}


def begun(share: float) -> PrioritizedDraws:
    """After a first batch of five new questions, which were right at 1, 1/4, 1/2, 3/4 and 0."""
    draws = PrioritizedDraws(share)
    assert drawn(draws, range(5)) == [0, 1, 2, 3, 4]
    assert [draws.ended(number, tree(number, *rates)) for number, rates in RATES.items()] == [False] * 5
    return draws


@pytest.mark.parametrize(("share", "questions"), [
    (0.0, [5, 6, 7, 8, 9]), (0.2, [2, 5, 6, 7, 8]), (0.4, [2, 1, 5, 6, 7]), (0.59, [2, 1, 5, 6, 7]),
    # There are but three with a signal.
    (0.99, [2, 1, 3, 5, 6]),
])  # fmt: skip
def test_a_share_asks_again_what_was_nearest_to_one_half_and_longest_ago(share, questions):
    assert drawn(begun(share), range(5, 10)) == questions


def test_of_rates_equally_near_to_one_half_the_one_asked_longest_ago_comes_first():
    draws = PrioritizedDraws(0.5)
    assert drawn(draws, range(3)) == [0, 1, 2]
    for number, right in ((0, 3), (1, 7), (2, 3)):
        draws.ended(number, tree(number, *[1.0] * right, *[0.0] * (10 - right)))
    assert abs(0.3 - 0.5) != abs(0.7 - 0.5), "of floats"
    assert drawn(draws, range(3, 9)) == [0, 1, 2, 3, 4, 5]


def test_a_share_is_rounded_down_but_not_below_a_whole_number():
    assert 0.58 * 50 < 29
    assert [num_repeats(share, 50) for share in (0.0, 0.58, 0.59)] == [0, 29, 29]


def test_the_last_group_counts_and_questions_in_flight_are_not_asked_twice():
    draws = begun(0.5)
    assert drawn(draws, range(5, 7)) == [2, 5]
    assert drawn(draws, range(7, 9)) == [1, 6]
    assert draws.ended(5, tree(2, 1.0, 1.0, 1.0, 1.0)) and not draws.ended(6, tree(5, 1.0, 0.0))
    assert not draws.ended(7, None)  # Question 1 could not be sampled.
    assert drawn(draws, range(9, 13)) == [5, 3, 7, 8]


def test_a_question_that_comes_back_in_another_epoch_is_the_same_one():
    """The environment's id tells it: under its old number it is not asked again for what it was."""
    draws = begun(0.5)
    assert drawn(draws, range(5, 7)) == [2, 5]
    assert not draws.ended(6, tree(2, 1.0, 1.0))
    assert drawn(draws, range(7, 9)) == [1, 6]


def test_places_that_replace_some_of_a_batch_ask_only_new_questions():
    """The rest of the batch is not in flight any more, and must not be in the batch twice."""
    draws = begun(0.5)
    draws.draw(range(5, 9), only_new=True)
    assert [draws.question_at(place) for place in range(5, 9)] == [5, 6, 7, 8]


def test_a_checkpoint_without_draws_goes_on_with_its_next_question():
    draws = PrioritizedDraws(0.0)
    draws.skip_to(500)
    assert drawn(draws, range(500, 502)) == [500, 501]


def test_a_resumed_run_whose_numbers_are_other_questions_asks_none_for_ever():
    """Another seed, or more data, gives another order."""
    draws = PrioritizedDraws(0.5)
    draws.set_state(begun(0.5).get_state())
    assert drawn(draws, range(5, 9)) == [2, 1, 5, 6]
    found = {place: draws.question_at(place) + 100 for place in range(5, 9)}
    assert [draws.ended(place, tree(question, 1.0, 1.0)) for place, question in found.items()] == [False] * 4
    assert drawn(draws, range(9, 13)) == [3, 7, 8, 9]


def test_a_resumed_run_draws_the_same():
    draws = begun(0.5)
    draws.draw(range(5, 9))
    resumed = PrioritizedDraws(0.5)
    resumed.set_state(json.loads(json.dumps(draws.get_state())))
    for one in (draws, resumed):
        assert [one.question_at(place) for place in range(5, 9)] == [2, 1, 5, 6]
        one.ended(5, tree(2, 0.0))
        one.draw(range(5, 11))  # Those in flight keep theirs.
    assert [resumed.question_at(place) for place in range(6, 11)] == [
        draws.question_at(place) for place in range(6, 11)
    ]
    assert resumed.get_state() == draws.get_state()
