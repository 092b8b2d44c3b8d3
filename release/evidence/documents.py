"""Makes the tables of docs/evidence.md from the stored rows.

`make generated` writes them below the page's lines

    <!-- table: STUDY | BASELINE | HEADING | ARM ARM ... -->

A table has the lines of these arms from the table with this heading that
`python -m release.evidence.study --table release/evidence/results/STUDY.parquet --baseline BASELINE` prints. The
beginning of a heading is enough.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path

from release.evidence.study_file import read_study, study_of
from release.evidence.study_rows import read_table
from release.evidence.study_table import all_tables

RESULTS = Path(__file__).parent / "results"


def table(asked: str) -> list[str]:
    """The lines of a table, for the page's text "STUDY | BASELINE | HEADING | ARM ARM ...".

    Raises:
        ValueError: the study's tables do not have the heading or an arm.
    """
    study, baseline, heading, arms = (part.strip() for part in asked.split("|"))
    parts = [part for part in printed(study, baseline).split("### ") if part.startswith(heading)]
    if len(parts) != 1:
        raise ValueError(f"{asked}: {len(parts)} tables of {study} begin with {heading!r}.")
    head, rule, *lines = [line for line in parts[0].splitlines() if line.startswith("|")]
    by_arm = {line.split(" | ")[0].removeprefix("| "): line for line in lines}
    unknown = [arm for arm in arms.split() if arm not in by_arm]
    if unknown:
        raise ValueError(f"{asked}: the table does not have the arm {unknown[0]!r}, only {', '.join(by_arm)}.")
    return [head, rule, *(by_arm[arm] for arm in arms.split())]


@cache
def printed(name: str, baseline: str) -> str:
    """All tables of a study, like its command prints them."""
    study = read_study(study_of(name))
    rows = read_table(RESULTS / f"{name}.parquet")
    return all_tables(rows, baseline, study.accuracies_to_reach, study.calls)
