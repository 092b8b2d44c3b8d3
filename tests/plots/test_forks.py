"""Forks by turn, by hand."""

import numpy as np

from rllib_arpo.plots.trees import draw_forks, forks_by_half
from tests.plots.runs import node, run_data

ROWS = [
    # Iteration 1: two questions; one node of three at depth 1 has two children.
    node("a", "0", 1, 0.5, children=2),
    node("a", "1", 1, 0.1),
    node("b", "0", 1, 0.1),
    node("b", "0", 2, 0.9, eligible=False),
    # Iteration 4: a fork of a fork.
    node("a", "0", 1, 0.1, iteration=4),
    node("a", "0.0", 2, 0.5, children=1, iteration=4),
    # Greedy evaluations have no forks.
    node("c", "0", 1, 0.5, purpose="evaluation"),
]


def test_the_forks_of_both_halves():
    found = forks_by_half(run_data(ROWS))
    assert list(found) == ["training, iterations 1 to 2", "training, iterations 3 to 4"]
    first, second = found.values()
    assert (first.turns.tolist(), first.per_question.tolist(), first.num_questions) == ([1, 2], [1.0, 0.0], 2)
    # No node at depth 2 was decided while budget remained.
    np.testing.assert_allclose(first.share, [1 / 3, np.nan])
    assert (second.turns.tolist(), second.per_question.tolist(), second.num_questions) == ([1, 2], [0.0, 1.0], 1)
    np.testing.assert_allclose(second.share, [0.0, 1.0])


def test_a_question_that_is_asked_twice_in_a_batch_counts_twice():
    again = [node("a", "0", 1, 0.5, children=2, number=number) for number in (0, 5)]
    (found,) = forks_by_half(run_data(again)).values()
    assert (found.per_question.tolist(), found.num_questions) == ([2.0], 2)


def test_the_figure():
    figure = draw_forks(run_data(ROWS))
    count, share = figure.axes
    bars = [(bar.get_x() + bar.get_width() / 2, bar.get_height()) for bar in count.patches]
    np.testing.assert_allclose(bars, [(0.8, 1.0), (1.8, 0.0), (1.2, 0.0), (2.2, 1.0)])
    np.testing.assert_allclose([bar.get_height() for bar in share.patches], [1 / 3, np.nan, 0.0, 1.0])
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [
        "training, iterations 1 to 2 (2 questions)", "training, iterations 3 to 4 (1 question)",
    ]  # fmt: skip
    assert (count.get_xlabel(), count.get_ylabel()) == ("turns before the fork", "forks per question")
