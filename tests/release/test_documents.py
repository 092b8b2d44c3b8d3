"""What the page of evidence and README.md say of studies stands in the rows."""

import re
from collections import defaultdict
from functools import cache
from itertools import accumulate
from pathlib import Path

import numpy as np
import pandas
import pytest
from scipy.stats import ttest_1samp

from release.evidence.study_file import read_study, study_of
from release.evidence.study_rows import read_table
from release.evidence.study_table import all_tables

REPOSITORY = Path(__file__).parents[2]
#: "value [low, high]".
INTERVAL = r"[−+]?\b\d\.\d+ \[[^\]]+\]"
RESULTS = REPOSITORY / "release/evidence/results"
PAGE = REPOSITORY / "docs/evidence.md"
#: Study -> the arms with which sentences compare others.
BASELINES = {
    "trails-small": "grpo grpo-two-steps grpo-m8-two-steps random-n4-two-steps",
    "trails-late-small": "grpo random-n4",
    "trails-plain-small": "grpo",
    "shapes-small": "grpo grpo-half grpo-m8 n2-z7 random-n2-z7 random-m32-n4-z7",
    "shapes-late-small": "grpo grpo-half grpo-m8 n2-z7 random-n2-z7 random-m32-n4-z7",
    "shapes-again-small": "grpo n2-z7",
    "credit-small": "grpo grpo-same-state",
    "credit-late-small": "grpo grpo-same-state n2-z7",
    "depth-late-small": "permuted-n2-z7",
    "any-small": "permuted depth grpo grpo-m8",
    "pass-rate-small": "grpo arpo arpo-0505",
    "late-models-small": "permuted depth grpo grpo-m8",
    "lake-small": "grpo grpo-m8",
    "lake-path-small": "grpo grpo-m8 grpo-same-state n2-z7",
    "shapes-smollm2": "grpo",
}


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.parquet")), ids=lambda path: path.stem)
def test_every_run_of_a_study_has_its_rows(path):
    """A run that ended badly stays."""
    study, runs = read_study(study_of(path.stem)), {(row["arm"], row["seed"]) for row in read_table(path)}
    assert {(arm.name, seed) for arm in study.arms.values() for seed in arm.seeds} == runs


def test_evidence_counts_the_runs_that_fell_below_half_of_their_best_accuracy():
    fell = []
    for path in [*RESULTS.glob("*.parquet"), *RESULTS.glob("unfinished/*.parquet")]:
        runs = defaultdict(list)
        for row in read_table(path):
            if row["accuracy"] is not None:
                runs[row["arm"], row["seed"]].append(row["accuracy"])
        for (arm, seed), values in runs.items():
            if any(value < best / 2 for value, best in zip(values, accumulate(values, max), strict=True) if best > 0.5):
                fell.append((path.stem, arm, seed, values[-1] > 0.5))
    assert ("credit-small", "grpo", 405, False) in fell
    rose = [run for run in fell if run[-1]]
    unfinished = [run for run in fell if run[0] == "depth-small"]
    assert (len(fell), len(rose), len(unfinished)) == (7, 3, 1)
    assert "- Seven runs fell" in PAGE.read_text()


@pytest.mark.slow
@pytest.mark.parametrize("document", [REPOSITORY / "README.md", PAGE], ids=lambda path: path.name)
def test_intervals_in_sentences_are_of_a_table_that_a_command_prints(document):
    told = _intervals(document.read_text())
    tables = (printed(study, baseline) for study, baselines in BASELINES.items() for baseline in baselines.split())
    known = set().union(*map(_intervals, tables))
    assert len(told) > 5
    assert told - known == set()


@pytest.mark.slow
@pytest.mark.parametrize("document", [REPOSITORY / "README.md", PAGE], ids=lambda path: path.name)
def test_the_p_of_a_document_is_the_corrected_one_of_its_table(document):
    known = defaultdict(set)
    for study, baselines in BASELINES.items():
        for baseline in baselines.split():
            for interval, p in re.findall(rf"({INTERVAL}) \| [^|]+ \| ([^|]+) \|", printed(study, baseline)):
                known[tuple(_intervals(interval))].add(p)
    text = " ".join(document.read_text().split())
    p_cell = r" \| (?=< 0\.001 \||\d\.\d{3} \|)"
    told = re.findall(rf"({INTERVAL})(?: over GRPO)?(?:{p_cell}|,? \(?p = )(< 0\.001|\d\.\d+)", text)
    bold = re.findall(rf"\*\*({INTERVAL})\*\*", text)
    assert len(told) + len(bold) > 3
    for interval, p in told:
        ps = known[tuple(_intervals(interval))]
        assert p in ps or p in {f"{float(one):.2f}" for one in ps if "<" not in one}, interval
    for interval in bold:
        assert _smallest(known[tuple(_intervals(interval))]) < 0.05, interval
    if document == PAGE:  # In the two tables with bold figures, these are all below 0.05.
        tables = text[text.index("| study | against | at decisions") : text.index("0.94 of the entropy")]
        for interval in set(re.findall(INTERVAL, tables)) - set(bold):
            assert _smallest(known[tuple(_intervals(interval))]) >= 0.05, interval


def _smallest(ps: set[str]) -> float:
    return min(float(p.removeprefix("< ")) for p in ps)


#: Study -> an arm, the arms that it is compared with, and the calls.
AUDITED = {
    "shapes-small": ("n2-z7", ["grpo", "grpo-m8", "random-n2-z7"], 10_000),
    "late-models-small": ("threshold", ["grpo", "grpo-m8", "random", "permuted", "depth"], 12_000),
    "any-small": ("threshold", ["grpo", "grpo-m8", "random", "permuted", "depth"], 15_000),
    "lake-path-small": ("n2-z7", ["grpo", "grpo-m8", "random-n2-z7"], 10_000),
}


@pytest.mark.slow
@pytest.mark.parametrize("study", AUDITED)
def test_the_main_differences_follow_from_the_rows_by_other_code(study):
    """pandas and scipy alone: nothing of `release.evidence` computes here."""
    arm, others, calls = AUDITED[study]
    rows = pandas.read_parquet(RESULTS / f"{study}.parquet").sort_values("iteration")
    last = rows.groupby(["arm", "seed"]).iteration.max().min()
    figures = {}
    for run, all_rows in rows.groupby(["arm", "seed"]):
        at = all_rows.dropna(subset="accuracy")
        figures[run] = (
            np.interp(calls, at.tool_calls, at.accuracy),
            np.interp(np.linspace(0, last, 101), at.iteration, at.accuracy).mean(),
        )
    start_models = {row.seed: getattr(row, "start_model", None) for row in rows.itertuples()}
    for other in others:
        differences = pandas.DataFrame(
            {seed: np.subtract(figures[arm, seed], figures[other, seed]) for seed in start_models}
        ).T
        if len(set(start_models.values())) > 1:
            differences = differences.groupby(start_models).mean()
        expected = []
        for values in (differences[0], differences[1]):
            test = ttest_1samp(values, 0)
            low, high = test.confidence_interval()
            expected.append(f"{values.mean():+.3f} [{low:+.3f}, {high:+.3f}] | {max(test.pvalue, 0.001):.3f}")
        pattern = rf"\| {arm} \| {other} \| \d+ \| ({INTERVAL}) \| ([^|]+) \| [^|]+ \| ({INTERVAL}) \| ([^|]+) \|"
        found = re.search(pattern, printed(study, other)).groups()
        found = [cell.replace("−", "-").replace("< 0.001", "0.001") for cell in found]
        assert [f"{found[0]} | {found[1]}", f"{found[2]} | {found[3]}"] == expected, other


@cache
def printed(name: str, baseline: str) -> str:
    """All tables of a study, like its command prints them."""
    study = read_study(study_of(name))
    rows = read_table(RESULTS / f"{name}.parquet")
    return all_tables(rows, baseline, study.accuracies_to_reach, study.calls)


def _intervals(text: str) -> set[tuple[float, ...]]:
    """(value, low, high) of every "value [low, high]", with up to two words before the bracket; values without sign."""
    found = re.findall(r"([−+]?[\d.,]+)(?: \w+){0,2} \[([^\], ]+), ([^\] ]+)\]", " ".join(text.split()))
    numbers = ([float(part.replace("−", "-").replace(",", "")) for part in parts] for parts in found)
    return {(abs(value), low, high) for value, low, high in numbers}
