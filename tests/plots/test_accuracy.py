"""Learning curves by hand."""

from rllib_arpo.plots.iterations import draw_accuracy_by_calls, draw_progress
from tests.plots.runs import result, row, run_data

#: Before training one of two held-out questions is right, in a trajectory of two turns.
BEFORE = [
    row("a", depth=0, purpose="evaluation", iteration=0, accuracy=1.0, reward=1.5),
    row("a", depth=1, purpose="evaluation", iteration=0, accuracy=1.0, reward=1.5),
    row("b", depth=None, purpose="evaluation", iteration=0, accuracy=0.0, reward=-1.0),
]
RUN = run_data(BEFORE, [result(1, 0.25, 0.5, 10), result(2, 0.5, float("nan"), 25, evaluated=0.75)])


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
