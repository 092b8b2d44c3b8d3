"""What the page of evidence and README.md say of studies stands in the rows."""

import re
from functools import cache
from pathlib import Path

import pytest

from release.evidence.study_file import read_study, study_of
from release.evidence.study_rows import read_table
from release.evidence.study_table import all_tables

REPOSITORY = Path(__file__).parents[2]
RESULTS = REPOSITORY / "release/evidence/results"
PAGE = REPOSITORY / "docs/evidence.md"
#: Study -> the arms with which sentences compare others.
BASELINES = {
    "trails-small": "grpo grpo-two-steps grpo-m8-two-steps random-n4-two-steps",
    "trails-late-small": "grpo random-n4",
    "trails-plain-small": "grpo",
    "shapes-small": "grpo grpo-m8 n2-z7 random-n2-z7 random-m32-n4-z7",
    "shapes-late-small": "grpo grpo-m8 n2-z7 random-n2-z7 random-m32-n4-z7",
    "shapes-again-small": "grpo n2-z7",
    "credit-small": "grpo grpo-same-state",
    "credit-late-small": "grpo grpo-same-state n2-z7",
    "depth-late-small": "permuted-n2-z7",
    "lake-small": "grpo grpo-m8",
    "lake-path-small": "grpo grpo-m8 grpo-same-state n2-z7",
    "shapes-smollm2": "grpo",
}


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*.parquet")), ids=lambda path: path.stem)
def test_every_run_of_a_study_has_its_rows(path):
    """A run that ended badly stays."""
    study, runs = read_study(study_of(path.stem)), {(row["arm"], row["seed"]) for row in read_table(path)}
    assert {(arm.name, seed) for arm in study.arms.values() for seed in arm.seeds} == runs


def test_the_single_runs_that_evidence_tells_of_are_among_the_rows():
    def accuracies(arm: str) -> list[float]:
        rows = [row for row in read_table(RESULTS / "trails-small.parquet") if row["arm"] == arm]
        by_iteration = sorted((row["iteration"], row["accuracy"]) for row in rows if row["accuracy"] is not None)
        return [round(accuracy, 3) for _, accuracy in by_iteration]

    collapsed = accuracies("always-over-tree")
    assert accuracies("grpo-m12")[-1] == 0.758
    assert (collapsed[0], max(collapsed), collapsed[-1]) == (0.25, 0.57, 0.18)


@pytest.mark.slow
@pytest.mark.parametrize("document", [REPOSITORY / "README.md", PAGE], ids=lambda path: path.name)
def test_intervals_in_sentences_are_of_a_table_that_a_command_prints(document):
    told = _intervals(document.read_text())
    tables = (printed(study, baseline) for study, baselines in BASELINES.items() for baseline in baselines.split())
    known = set().union(*map(_intervals, tables))
    assert len(told) > 5
    assert told - known == set()


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
