"""The figures and tables of a study, of literal rows, by hand."""

import numpy as np
import pytest
from scipy.stats import ttest_rel

from release.evidence.study_figures import (
    Run,
    compare,
    cost_to_reach,
    figures,
    finished_runs,
    holm,
    paired_p,
    ratio_of_means,
    reach,
    start_model_means,
)
from release.evidence.study_table import accuracy_table, all_tables, curves, means_table
from tests.release.study_rows import make_row


def run(arm: str, seed: int, *points: tuple[int, float | None], **more) -> Run:
    """(executed calls, accuracy) of iterations 0, 1, ..."""
    return Run(arm, seed, tuple(make_row(arm, seed, i, calls, a, **more) for i, (calls, a) in enumerate(points)))


def test_figures_of_two_runs():
    slow = run("grpo", 0, (0, 0.0), (50, None), (100, 0.5), (150, None), (200, 1.0))
    lean = run("threshold", 0, (0, 0.0), (25, None), (50, 0.5), (75, None), (100, 1.0))
    found = figures([slow, lean], 100)
    assert found["grpo"][0]["mean over updates"] == pytest.approx(0.5)
    assert found["threshold"][0]["mean over updates"] == pytest.approx(0.5)
    # Up to 100 calls, all that the leaner one executed: GRPO rises to 0.5 by then, the other to 1.
    assert found["grpo"][0]["mean over calls"] == pytest.approx(0.25)
    assert found["threshold"][0]["mean over calls"] == pytest.approx(0.5)
    assert found["grpo"][0]["accuracy at equal calls"] == pytest.approx(0.5)
    assert found["threshold"][0]["accuracy at equal calls"] == pytest.approx(1.0)
    assert found["grpo"][0]["accuracy at equal updates"] == 1.0


@pytest.mark.parametrize(
    ("accuracy", "calls"), [(0.0, 0.0), (0.25, 50.0), (0.5, 100.0), (0.6, 140.0), (0.75, 200.0), (0.8, None)]
)
def test_cost_to_reach_an_accuracy(accuracy, calls):
    one = run("a", 0, (0, 0.0), (60, None), (100, 0.5), (200, 0.75), (300, 0.7))
    assert cost_to_reach(one, accuracy) == (None if calls is None else pytest.approx(calls))


def test_censored_runs_count_with_the_horizon_and_a_median_may_be_censored():
    """Seed 0 has 0.5 after 50 of 100 calls, seeds 1 and 2 never; the baseline after 80, 100 and 120 of 200."""
    arm = {
        0: run("a", 0, (0, 0.0), (100, 1.0)),
        1: run("a", 1, (0, 0.0), (110, 0.4)),
        2: run("a", 2, (0, 0.0), (120, 0.4)),
    }
    baseline = {
        seed: run("grpo", seed, (0, 0.0), (calls, 0.5), (200, 0.5)) for seed, calls in enumerate((80, 100, 120))
    }
    found = reach(arm, baseline, 0.5)
    # Of the runs that never had it, seed 1's has the fewest calls.
    assert (found.reached, found.runs, found.median, found.horizon) == (1, 3, None, 110)
    assert found.restricted_mean == pytest.approx((50 + 110 + 110) / 3)
    # The baseline's third run had it after 120 calls, beyond the horizon.
    assert found.ratio[0] == pytest.approx(270 / 290)
    of_baseline = reach(baseline, baseline, 0.5)
    assert (of_baseline.reached, of_baseline.median, of_baseline.restricted_mean) == (3, 100.0, pytest.approx(100.0))


def test_the_ratio_is_of_pairs():
    """Seeds differ tenfold, and the arms by half on each: in pairs the ratio has no spread."""
    others = np.array([10.0, 100.0])
    assert ratio_of_means(others / 2, others) == pytest.approx((0.5, 0.5, 0.5))
    assert ratio_of_means(np.array([5.0]), np.array([10.0])) is None
    # Arms that call no tool, or have the accuracy before they call one.
    assert (ratio_of_means(np.zeros(2), others), ratio_of_means(others, np.zeros(2))) == (None, None)


def test_a_run_without_the_numbers_that_tables_need_is_named():
    for lacks in ({"tool_calls": None}, {"accuracy": None}):
        with pytest.raises(ValueError, match=r"^a, seed 3: has no tool_calls, or no first or last accuracy\.$"):
            finished_runs([make_row("a", 3, 0, 0, 0.5), make_row("a", 3, 1, 5, 0.5) | lacks])


def test_the_interval_of_a_ratio_covers_as_often_as_it_says():
    """Eight pairs that share a factor, as runs share a seed; the ratio of the expectations is 0.8."""
    rng, covered = np.random.default_rng(0), 0
    for _ in range(2000):
        seeds = np.exp(0.3 * rng.normal(size=8))
        values, others = 0.8 * seeds * np.exp(0.2 * rng.normal(size=8)), seeds * np.exp(0.2 * rng.normal(size=8))
        _, low, high = ratio_of_means(values, others)
        covered += low < 0.8 < high
    assert 0.92 < covered / 2000 < 0.97


def test_only_shared_seeds_are_paired():
    runs = [run("grpo", seed, (0, 0.0), (10, 0.1 * seed)) for seed in (0, 1, 2)]
    runs += [run("threshold", seed, (0, 0.0), (10, 0.1 * seed + 0.25)) for seed in (1, 2, 3)]
    table = accuracy_table(figures(runs, 10), ["grpo", "threshold"], "grpo").splitlines()
    assert table[2].startswith("| grpo | 3 | 0.100 ± 0.100 |")
    # 0.45 +- 0.1 over its own three seeds, the difference over the two that both have: too few for an interval.
    assert table[3].startswith("| threshold | 3 | 0.450 ± 0.100 (+0.250) |")


def test_a_run_with_too_few_calls_has_no_figure_at_them():
    short, long = (run("a", seed, (0, 0.0), (calls, 1.0)) for seed, calls in ((0, 10), (1, 40)))
    found = figures([short, long], 20)["a"]
    names = ("mean over calls", "accuracy at equal calls")
    assert all(np.isnan(found[0][name]) for name in names)
    assert [found[1][name] for name in names] == pytest.approx([0.25, 0.5])
    # Of the other seed alone: the table says so.
    row = accuracy_table(figures([short, long], 20), ["a"], "grpo").splitlines()[2]
    assert row.endswith("| 0.250, 1 of 2 seeds | 0.500, 1 of 2 seeds | 25 | 1 |")


def test_means_have_intervals_over_seeds():
    """Five rates of mean 0.5 and standard deviation 0.25: 0.5 +- 2.776 * 0.25 / sqrt(5)."""
    rates = (0.25, 0.25, 0.75, 0.75, 0.5)
    runs = [run("a", seed, (0, 0.0), (10, 0.0), fork_rate=rate) for seed, rate in enumerate(rates)]
    found = figures([*runs, run("b", 0, (0, 0.0), (10, 0.0), delta=-0.5)], 10)
    table = means_table(found, ["a", "b"], {"fork_rate": 2, "decisive_auc": 2, "delta": 1}).splitlines()
    assert table[0] == "| arm | fork_rate | delta |"  # No arm has the other one.
    assert table[2:] == ["| a | 0.50 [0.19, 0.81] |  |", "| b |  | −0.5 |"]


def test_unfinished_runs_are_left_out_and_named():
    rows = [make_row("grpo", 0, i, i, 0.5, last_iteration=2) for i in (0, 1, 2)]
    rows += [make_row("lean", 0, i, i, 0.5, last_iteration=4) for i in (0, 1, 2)]
    runs, others = finished_runs(rows)
    assert [(r.arm, r.seed, len(r.rows)) for r in runs] == [("grpo", 0, 3)]
    assert others == ["lean, seed 0"]
    assert "- left out, not finished: lean, seed 0\n" in all_tables(rows, "grpo", [0.5], 2)
    assert all_tables(rows[3:6], "grpo", [0.5], 2) == "No run is finished; begun: lean, seed 0.\n"


def test_runs_of_a_seed_that_begin_with_other_models_are_refused():
    rows = [make_row(arm, seed, 0, 0, begin) for arm, seed, begin in (("a", 0, 0.25), ("a", 1, 0.5), ("b", 0, 0.5))]
    assert len(finished_runs(rows[:2])[0]) == 2
    with pytest.raises(
        ValueError, match=r"^seed 0: b begins with the accuracy 0\.5, a with the accuracy 0\.25: they start from dif"
    ):
        finished_runs(rows)
    # A sampled accuracy may differ where the model is the same.
    named = [row | {"start_model": "x"} for row in rows]
    assert len(finished_runs(named)[0]) == 3
    named[2]["start_model"] = "y"
    with pytest.raises(ValueError, match=r"^seed 0: b begins with y, a with x: they start from different models\b"):
        finished_runs(named)
    with pytest.raises(ValueError, match=r"^b, seed 5: does not say its start model, and other runs do\.$"):
        finished_runs([*named[:2], rows[2] | {"seed": 5}])


def of_starts(gains: dict[str, list[float]]) -> list[dict]:
    """Rows of "grpo", which stays at 0, and of "a", which gains these accuracies in runs from each start model."""
    runs = [(start, gain) for start, own in gains.items() for gain in own]
    return [
        make_row(arm, seed, i, 10 * i, i * gain * (arm == "a"), start_model=start, machine="M")
        for seed, (start, gain) in enumerate(runs)
        for arm in ("grpo", "a")
        for i in (0, 1)
    ]


def test_intervals_of_several_start_models_are_over_their_means():
    """Means 0.2, 0.3, 0.4, 0.5, 0.6 after the update: 0.4 +- 2.776 * 0.158 / sqrt(5) = 0.196; half of it on the way."""
    rows = of_starts(
        {name: [mean - 0.1, mean + 0.1] for name, mean in zip("vwxyz", (0.2, 0.3, 0.4, 0.5, 0.6), strict=True)}
    )
    parts = {part.partition("\n")[0]: part.splitlines() for part in all_tables(rows, "grpo", [], 10).split("### ")}
    against = parts["Each arm against grpo, p corrected by Holm"]
    assert against[4].startswith(
        "| a | grpo | 10 | +0.400 [+0.204, +0.596] | 0.005 | 0.005 | +0.200 [+0.102, +0.298] |"
    )
    assert parts["Start models, and each arm's mean over updates from them"][2:5] == [
        "| start model | machine | seeds | accuracy at the start | grpo | a |", "|---|---|---|---|---|---|",
        "| v | M | 0, 1 | 0.000 | 0.000 | 0.100 |",
    ]  # fmt: skip
    values = curves(
        [Run("a", s, tuple(r for r in rows if (r["arm"], r["seed"]) == ("a", s))) for s in range(10)], "iteration"
    )
    assert values["a"][1][:, -1] == pytest.approx([0.2, 0.3, 0.4, 0.5, 0.6])


def test_seeds_of_one_start_model_are_values_of_their_own():
    values = np.array([1.0, 2.0, 4.0])
    assert (
        start_model_means(values, ["x"] * 3).tolist()
        == start_model_means(values, [None] * 3).tolist()
        == [1.0, 2.0, 4.0]
    )
    assert start_model_means(values, ["x", "y", "y"]).tolist() == [1.0, 3.0]


def test_runs_of_a_seed_with_other_weights_are_refused():
    rows = [make_row(arm, 0, 0, 0, 0.5, start_model=start) for arm, start in (("a", "x"), ("b", "y"))]
    with pytest.raises(ValueError, match=r"^seed 0: b begins with"):
        finished_runs(rows)


@pytest.mark.slow
@pytest.mark.parametrize("between", [0.0, 0.03, 0.1])
@pytest.mark.parametrize(("num_starts", "num_seeds"), [(8, 2), (4, 4)])
def test_intervals_cover_whatever_the_start_models_differ_by(num_starts, num_seeds, between):
    """The standard deviation is 0.06 within start models; 0.95 of 4,000 has a standard error of 0.0034."""
    rng, starts = np.random.default_rng(0), np.repeat(np.arange(num_starts), num_seeds)
    differences = [
        between * rng.normal(size=num_starts)[starts] + 0.06 * rng.normal(size=starts.size) for _ in range(4000)
    ]
    assert 0.938 < np.mean([paired_p(start_model_means(one, starts)) > 0.05 for one in differences]) < 0.962
    if between == 0.1:  # Seeds are not independent then.
        assert np.mean([paired_p(one) > 0.05 for one in differences]) < 0.9


def test_curves_end_where_the_shortest_run_does():
    runs = [run("grpo", 0, (0, 0.0), (39, None), (40, 1.0)), run("grpo", 1, (0, 0.5), (20, 0.5))]
    at, values = curves(runs, "tool_calls")["grpo"]
    assert at[[0, 50, 100]].tolist() == [0.0, 10.0, 20.0]
    np.testing.assert_allclose(values[:, [0, 50, 100]], [[0.0, 0.25, 0.5], [0.5, 0.5, 0.5]])


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
    a, b, c = compare(found, [("a", "grpo"), ("b", "grpo"), ("c", "grpo")], "f", min_values=5)
    assert (a.p, a.corrected) == pytest.approx((0.01324, 2 * 0.01324), abs=1e-5)
    assert (b.p, b.corrected) == pytest.approx((1.0, 1.0))
    assert (c.p, c.corrected, c.differences.tolist()) == (None, None, [1.0])


def test_arms_are_compared_with_the_baseline_and_with_their_random_forks():
    """The differences 0.25 to 0.29, and 0.125 to 0.165: mean and 2.776 * 0.0158 / sqrt(5) = 0.0196."""
    rows = [
        make_row(arm, seed, i, 10 * i, i * (gain + 0.01 * seed * (arm == "lean")), fork_rate_of=of)
        for arm, gain, of in (("grpo", 0.0, None), ("lean", 0.25, None), ("random", 0.125, "lean"))
        for seed in range(5)
        for i in (0, 1)
    ]
    parts = all_tables(rows, "grpo", [], 10).split("### ")
    against, random = (part.splitlines() for part in parts if part.startswith("Each arm against"))
    p = "< 0.001 | < 0.001"
    assert against[4] == f"| lean | grpo | 5 | +0.270 [+0.250, +0.290] | {p} | +0.135 [+0.125, +0.145] | {p} |"
    assert against[5].startswith("| random | grpo | 5 | ")
    assert [line for line in random if line.startswith("| lean | random | 5 | +0.145 [+0.125, +0.165] | ")]
