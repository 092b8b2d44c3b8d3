"""Writes what follows from declarations into files that are kept, so that people read it there.

    make generated

Below the line `<!-- table: NAME -->` of a page stand the rows of `TABLES`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from rllib_arpo.core.metric import metric_rows
from rllib_arpo.learner.metrics import NUM_ALARMS, UPDATE_METRICS
from rllib_arpo.rollout.metric_table import BATCH_METRICS, ROLLOUT_METRICS, TOOL_METRICS

REPOSITORY = Path(__file__).parents[1]


def metric_table(place: str, rows: list[str]) -> list[str]:
    return [f"| under `{place}` | is |", "|---|---|", *rows]


#: Name -> the lines of the table.
TABLES: dict[str, list[str]] = {
    "rollout": metric_table(
        "env_runners/", [*metric_rows(ROLLOUT_METRICS), *metric_rows(TOOL_METRICS, "tools/<name>/")]
    ),
    "training": metric_table("env_runners/", metric_rows(BATCH_METRICS)),
    "update": metric_table("learners/default_policy/", [*metric_rows(UPDATE_METRICS), *metric_rows([NUM_ALARMS])]),
}
_TABLE = re.compile(r"^<!-- table: (\w+) -->\n(?:\|.*\n)*", re.MULTILINE)


def with_tables(text: str) -> str:
    """The page with its tables as they are now."""
    return _TABLE.sub(lambda found: "\n".join([f"<!-- table: {found[1]} -->", *TABLES[found[1]], ""]), text)


#: File -> its text as it should be, from the text that it has.
GENERATED: dict[str, Callable[[str], str]] = {"docs/watch.md": with_tables}


if __name__ == "__main__":
    for name, generate in GENERATED.items():
        path = REPOSITORY / name
        path.write_text(generate(path.read_text()))
