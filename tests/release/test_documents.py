"""What the page of evidence and README.md say of studies stands in the rows."""

import re
from collections import defaultdict
from functools import cache
from itertools import accumulate
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
    "any-small": "permuted random depth grpo grpo-m8",
    "pass-rate-small": "grpo arpo arpo-0505",
    "late-models-small": "permuted random depth grpo grpo-m8",
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
