"""Paired tests and Holm's correction, by hand."""

import numpy as np
import pytest
from scipy.stats import ttest_rel

from release.evidence.comparisons import compare, holm, paired_p
from release.evidence.study_figures import figures, finished_runs
from release.evidence.study_table import all_tables, comparison_table
from tests.release.study_rows import make_row


def test_holm_by_hand():
    """In order 0.005 x 4, 0.01 x 3, 0.03 x 2, and 0.04 x 1, which is not less than the one before."""
    assert holm([0.01, 0.04, 0.03, 0.005]) == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.5, 0.6]) == pytest.approx([1.0, 1.0])
    assert holm([]) == []


def test_p_is_students_of_pairs():
    """Five differences of mean 3 and variance 2.5: t = 4.243 with four degrees of freedom."""
    differences = np.array([1.0, 2.0, 3.0, 4.0, 5.0])
    assert paired_p(differences) == pytest.approx(0.01324, abs=1e-5)
    base = np.array([0.3, 0.1, 0.7, 0.2, 0.5])
    assert paired_p(differences) == pytest.approx(ttest_rel(base + differences, base).pvalue)
    assert (paired_p(np.zeros(5)), paired_p(np.full(5, 0.1))) == (1.0, 0.0)


def test_a_family_is_corrected_for_those_that_have_a_p():
    """Of three arms one has too few seeds: the factors are 2 and 1."""
    by_seed = {s: {"f": 0.0} for s in range(5)}
    found = {
        "grpo": by_seed,
        "a": {s: {"f": 0.1 * (s + 1)} for s in range(5)},
        "b": {s: {"f": 0.1 * (s - 2)} for s in range(5)},
        "c": {0: {"f": 1.0}, 1: {"f": float("nan")}},
    }
    a, b, c = compare(found, [("a", "grpo"), ("b", "grpo"), ("c", "grpo")], "f", min_seeds=5)
    assert (a.p, a.corrected) == pytest.approx((0.01324, 2 * 0.01324), abs=1e-5)
    assert (b.p, b.corrected) == pytest.approx((1.0, 1.0))
    assert (c.p, c.corrected, c.differences.tolist()) == (None, None, [1.0])


ARMS = {"grpo": 0.0, "lean": 0.25, "random": 0.125}
ROWS = [
    make_row(arm, seed, i, 10 * i, i * (gain + 0.01 * seed * (arm == "lean")), fork_rate_of=of)
    for arm, gain in ARMS.items()
    for of in ["lean" if arm == "random" else None]
    for seed in range(5)
    for i in (0, 1)
]


def test_arms_are_compared_with_the_baseline_and_with_their_random_forks():
    """The differences 0.25 to 0.29, and 0.125 to 0.165: mean and 2.776 * 0.0158 / sqrt(5) = 0.0196."""
    parts = all_tables(ROWS, "grpo", [], 10).split("### ")
    against, random = (part.splitlines() for part in parts if part.startswith("Each arm against"))
    assert against[0] == "Each arm against grpo, p corrected by Holm"
    assert against[2].split(" | ")[:6] == [
        "| arm",
        "compared with",
        "seeds",
        "accuracy at equal calls",
        "p",
        "p corrected",
    ]
    assert against[4].split(" | ") == [
        "| lean", "grpo", "5", "+0.270 [+0.250, +0.290]", "< 0.001", "< 0.001",
        "+0.135 [+0.125, +0.145]", "< 0.001", "< 0.001 |",
    ]  # fmt: skip
    assert [line.split(" | ")[:2] for line in against[4:6]] == [["| lean", "grpo"], ["| random", "grpo"]]
    assert random[0] == "Each arm against random forks at its rate, p corrected by Holm"
    assert [line.split(" | ")[:4] for line in random[4:] if line] == [
        ["| lean", "random", "5", "+0.145 [+0.125, +0.165]"]
    ]


def test_an_arm_with_too_few_calls_has_no_p_at_equal_calls():
    table = comparison_table(figures(finished_runs(ROWS)[0], 11), [("lean", "grpo")]).splitlines()
    assert table[2].startswith("| lean | grpo | 5 | too few calls |  |  | +0.135 ")
    # Where seed 0 alone has them, the seeds of both figures are told.
    longer = [row | {"tool_calls": row["tool_calls"] + (row["seed"] == 0) * row["iteration"]} for row in ROWS]
    table = comparison_table(figures(finished_runs(longer)[0], 11), [("lean", "grpo")]).splitlines()
    assert table[2].startswith("| lean | grpo | 1 and 5 | +0.250 |  |  | +0.135 ")
