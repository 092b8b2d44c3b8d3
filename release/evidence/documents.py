"""Writes the tables of studies into docs/evidence.md, from the rows that are kept.

    python -m release.evidence.documents

Where the page has the line

    <!-- table: STUDY | BASELINE | HEADING | ARM ARM ... -->

the lines of the table below it become those of these arms in the table of this heading that
`python -m release.evidence.study --table release/evidence/results/STUDY.parquet --baseline BASELINE` prints. A heading
may be cut off where its beginning tells.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

from release.evidence.study_file import read_study, study_of
from release.evidence.study_rows import read_table
from release.evidence.study_table import all_tables

REPOSITORY = Path(__file__).parents[2]
RESULTS = REPOSITORY / "release/evidence/results"
PAGE = REPOSITORY / "docs/evidence.md"

_TABLE = re.compile(r"^<!-- table: (?P<asked>.*) -->\n(?:\|.*\n)*", re.MULTILINE)


def filled(text: str) -> str:
    """The page with its tables as they are now.

    Raises:
        ValueError: the rows do not have a table, a heading or an arm that the page asks for.
    """
    return _TABLE.sub(lambda found: f"<!-- table: {found['asked']} -->\n{table(found['asked'])}\n", text)


def table(asked: str) -> str:
    """Args: asked: "STUDY | BASELINE | HEADING | ARM ARM ...", as on the page."""
    study, baseline, heading, arms = (part.strip() for part in asked.split("|"))
    parts = [part for part in printed(study, baseline).split("### ") if part.startswith(heading)]
    if len(parts) != 1:
        raise ValueError(f"{asked}: {len(parts)} tables of {study} begin with {heading!r}.")
    head, rule, *lines = [line for line in parts[0].splitlines() if line.startswith("|")]
    by_arm = {line.split(" | ")[0].removeprefix("| "): line for line in lines}
    unknown = [arm for arm in arms.split() if arm not in by_arm]
    if unknown:
        raise ValueError(f"{asked}: the table does not have the arm {unknown[0]!r}, only {', '.join(by_arm)}.")
    return "\n".join([head, rule, *(by_arm[arm] for arm in arms.split())])


@cache
def printed(name: str, baseline: str) -> str:
    """All tables of a study, as its command prints them."""
    study = read_study(study_of(name))
    rows = read_table(RESULTS / f"{name}.parquet")
    return all_tables(rows, baseline, study.accuracies_to_reach, study.calls)


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text()))
