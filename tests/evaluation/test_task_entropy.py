"""Curves, rises and rules of a record's turns, by hand."""

from collections.abc import Sequence

import numpy as np
import pandas as pd
import pytest

from rllib_arpo.core.branching import BranchingParams
from rllib_arpo.evaluation.curves import entropy_curve
from rllib_arpo.evaluation.task_entropy import COLUMNS, as_json, entropy_tables, task_entropy

PARAMS = BranchingParams(branch_base_probability=0.5, branch_entropy_weight=10.0)


def table(*turns: tuple[str, str, int, str | None, Sequence[float], float | None]) -> pd.DataFrame:
    """Turns: the question, its sample, turns above, the tool that answered before it, its entropies, and dH."""
    rows = [
        (question, ord(question), agent, True, depth, tool, np.array(entropies), delta)
        for question, agent, depth, tool, entropies, delta in turns
    ]
    return pd.DataFrame(rows, columns=COLUMNS).astype({"delta": float})


def test_a_question_counts_once_however_many_turns_it_has():
    """Question a has three turns, of which two have a second token; question b has one turn of two tokens."""
    turns = table(*((q, "0", 0, None, own, None) for q, own in (
        ("a", [1.0, 4.0]), ("a", [2.0, 6.0, 9.0]), ("a", [6.0]), ("b", [5.0, 1.0]),
    )))  # fmt: skip
    curve = entropy_curve(turns, 3)
    assert curve.mean.tolist() == [4.0, 3.0, 9.0]  # (3 + 5) / 2, (5 + 1) / 2, 9
    assert (curve.num_questions.tolist(), curve.num_turns.tolist()) == ([2, 2, 1], [4, 3, 1])
    # s / sqrt(2) of (3, 5) is 1, of (5, 1) it is 2; t of two questions is 12.706, and one question has no interval.
    np.testing.assert_allclose(curve.half_width, [12.7062, 2 * 12.7062, np.nan], rtol=1e-5)
    assert entropy_curve(turns, 2).mean.tolist() == [4.0, 3.0]


def test_the_results_of_a_task():
    """Question a: the entropy rises at two of three nodes, and one sample was masked; question b: at none of one."""
    rows = table(
        ("a", "0", 0, None, [1.0, 1.0], None),
        ("a", "0", 1, "python", [2.0, 3.0], 0.03),
        ("a", "0", 2, "python", [0.5], -0.005),
        ("a", "1", 0, None, [1.0], None),
        ("a", "1", 1, "search", [3.0, 3.0], 0.02),
        ("a", "2", None, None, [], None),
        ("b", "0", 0, None, [2.0], None),
        ("b", "0", 1, "python", [1.0], -0.01),
    ).assign(counts=[True] * 5 + [False] + [True] * 2)
    found = task_entropy("squares", rows, PARAMS)
    assert found.counts == {"questions": 2, "samples": 4, "masked_samples": 1, "turns": 7, "nodes": 4}
    plain = as_json(found)
    assert list(plain["rises"]) == ["after tools", "tool python", "tool search", "round 1", "round 2"]
    rise = plain["rises"]["after tools"]
    assert (rise["nodes"], rise["share_positive"]["value"]) == (4, pytest.approx((2 / 3 + 0) / 2))
    assert rise["share_positive"]["low"] < 1 / 3 < rise["share_positive"]["high"]
    assert rise["delta"]["value"] == pytest.approx((0.045 / 3 - 0.01) / 2)
    assert rise["delta_quantiles"][0.5] == pytest.approx((0.02 - 0.005) / 2)
    # P = 0.5 + 10 dH is 0.8, 0.45, 0.7 and 0.4.
    assert {name: rule["value"] for name, rule in plain["rules"].items()} == {
        "threshold": pytest.approx((2 / 3 + 0) / 2),
        "probability": pytest.approx(((0.8 + 0.45 + 0.7) / 3 + 0.4) / 2),
    }
    assert plain["curves"]["round 2"] == {"mean": [0.5], "half_width": [None], "questions": [1], "turns": [1]}
    assert [table.row_count for table in entropy_tables(found)] == [5, 2]
