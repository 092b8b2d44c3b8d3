"""Entropy by token position, by hand: forks are left out, a question counts once."""

import numpy as np

from rllib_arpo.plots.trees import curves_by_stage, draw_entropy
from tests.plots.runs import row, run_data

TRAINING = [
    row("a", "0", 0, entropies=[1.0, 2.0]),
    row("a", "0", 1, "search", entropies=[4.0, 0.0]),
    row("a", "1", 0, entropies=[3.0]),
    row("a", "0.0", 1, "search", entropies=[100.0]),
    row("b", "0", 0, entropies=[5.0, 6.0], iteration=3),
    row("b", "0", 1, "python", entropies=[7.0], iteration=3),
    # Nothing was measured, or nothing was sampled.
    row("b", "1", 0, entropies=None),
    row("b", "2", None, entropies=None),
]
EVALUATION = [
    row("c", entropies=[0.5], purpose="evaluation", iteration=0),
    row("c", entropies=[0.25], purpose="evaluation", iteration=4),
]
RUN = run_data([*TRAINING, *EVALUATION])


def test_the_curves():
    found = curves_by_stage(RUN)
    assert list(found) == ["evaluation before training", "evaluation after 4 updates", "training, iterations 1 to 3"]
    means = {stage: {name: curve.mean.tolist() for name, curve in curves.items()} for stage, curves in found.items()}
    assert means == {
        "evaluation before training": {"start": [0.5]},
        "evaluation after 4 updates": {"start": [0.25]},
        # Question "a" counts by the mean of its two samples.
        "training, iterations 1 to 3": {
            "start": [(2.0 + 5.0) / 2, (2.0 + 6.0) / 2], "tool python": [7.0], "tool search": [4.0, 0.0],
        },
    }  # fmt: skip
    assert found["training, iterations 1 to 3"]["start"].num_turns.tolist() == [3, 2]


def test_the_figure():
    before, _after, training = draw_entropy(RUN).axes
    assert before.get_title() == "evaluation before training"
    start, _python, search = training.lines
    # A curve ends where fewer turns go on (`evaluation/entropy/figure.py`): only two of three have a second token.
    np.testing.assert_array_equal(start.get_xydata(), [[1, 3.5]])
    np.testing.assert_array_equal(search.get_xydata(), [[1, 4.0], [2, 0.0]])
    assert [text.get_text() for text in training.get_legend().get_texts()] == [
        "start (3 turns)", "after python (1 turns)", "after search (1 turns)",
    ]  # fmt: skip
    assert (training.get_xlabel(), before.get_ylabel()) == ("token of the turn", "entropy (nats)")
