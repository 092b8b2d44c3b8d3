"""dH by turn and tool, by hand."""

import numpy as np

from rllib_arpo.plots.trees import draw_rises, rises_by_stage
from tests.plots.runs import node, row, run_data

ROWS = [
    node("a", "0", 1, 0.2),
    node("a", "1", 1, 0.4),
    node("b", "0", 1, 0.0),
    node("a", "0", 2, -0.5, tool="python"),
    node("b", "0", 3, 0.5),
    # Below a fork, and before a turn that was not examined.
    node("a", "0.0", 2, 9.0),
    row("b", "1", 1, "search"),
]
STAGE = "training, iteration 1"


def test_the_rises():
    found = rises_by_stage(run_data(ROWS))
    assert list(found) == [STAGE] and list(found[STAGE]) == ["python", "search"]
    search = found[STAGE]["search"]
    assert search.turns.tolist() == [1, 3]
    # Question "a" counts by the mean of its two nodes, 0.3.
    np.testing.assert_allclose(search.mean, [0.15, 0.5])
    # The standard deviation of 0.3 and 0 is 0.3 / sqrt(2), that of their mean 0.15, t 12.706; one question has none.
    np.testing.assert_allclose(search.half_width, [12.7062 * 0.15, np.nan], rtol=1e-5)
    assert search.num_nodes.tolist() == [3, 1]
    assert found[STAGE]["python"].mean.tolist() == [-0.5]


def test_the_figure():
    (panel,) = draw_rises(run_data(ROWS)).axes
    _zero, _python, search = panel.lines
    np.testing.assert_allclose(search.get_xydata(), [[1, 0.15], [3, 0.5]])
    assert [text.get_text() for text in panel.get_legend().get_texts()] == [
        "after python (1 node)", "after search (4 nodes)",
    ]  # fmt: skip
    assert (panel.get_xlabel(), panel.get_ylabel()) == ("turns before the tool response", "dH (sum_log_vocab, k = 4)")
