"""Learning curves by hand."""

import pytest

from rllib_arpo.plots.iterations import draw_accuracy_by_calls, draw_progress, learning_curves
from rllib_arpo.plots.run_data import MissingDataError
from tests.plots.runs import result, row, run_data

#: Before training one of two held-out questions is right, in a trajectory of two turns.
BEFORE = [
    row("a", depth=0, purpose="evaluation", iteration=0, accuracy=1.0, reward=1.5),
    row("a", depth=1, purpose="evaluation", iteration=0, accuracy=1.0, reward=1.5),
    row("b", depth=None, purpose="evaluation", iteration=0, accuracy=0.0, reward=-1.0),
]
RUN = run_data(BEFORE, [result(1, 0.25, 0.5, 10), result(2, 0.5, float("nan"), 25, evaluated=0.75)])


def test_the_curves():
    assert learning_curves(RUN, "accuracy") == {"training": ([1, 2], [0.25, 0.5]), "evaluation": ([0, 2], [0.5, 0.75])}
    # The reward of iteration 2 is not known.
    assert learning_curves(RUN, "mean reward") == {"training": ([1], [0.5]), "evaluation": ([0, 2], [0.25, 1.5])}


def test_the_figure_of_progress():
    accuracy, reward = draw_progress(RUN).axes
    assert [line.get_xydata().tolist() for line in accuracy.lines] == [[[1, 0.25], [2, 0.5]], [[0, 0.5], [2, 0.75]]]
    # The reward of iteration 2 is not known.
    assert [line.get_xydata().tolist() for line in reward.lines] == [[[1, 0.5]], [[0, 0.25], [2, 1.5]]]
    assert (accuracy.get_xlabel(), accuracy.get_ylabel(), reward.get_ylabel()) == (
        "iteration", "accuracy", "mean reward",
    )  # fmt: skip
    assert [text.get_text() for text in accuracy.get_legend().get_texts()] == [
        "training, as sampled", "evaluation, held out",
    ]  # fmt: skip


def test_the_figure_against_tool_calls():
    (panel,) = draw_accuracy_by_calls(RUN).axes
    assert [line.get_xydata().tolist() for line in panel.lines] == [[[10, 0.25], [25, 0.5]], [[0, 0.5], [25, 0.75]]]
    assert (panel.get_xlabel(), panel.get_ylabel()) == ("tool calls executed in training", "accuracy")


@pytest.mark.parametrize(
    ("draw", "run", "sentence"),
    [
        (draw_progress, run_data(), "No result of the run has an accuracy or a reward."),
        (draw_accuracy_by_calls, run_data(results=[result(1, 0.5, 1.0, 0)]), "The run has executed no tool call."),
    ],
)
def test_a_run_without(draw, run, sentence):
    with pytest.raises(MissingDataError) as error:
        draw(run)
    assert str(error.value) == sentence
