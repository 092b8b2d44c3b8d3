"""Writes tables and methods that follow from declarations into the files where people and editors read them.

    make generated

A page gets the table NAME of `TABLES` below its line `<!-- table: NAME -->`, docs/evidence.md gets the tables of
studies, and `rllib_arpo/options/methods.py` the methods of `ARPOConfig`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path

from release.evidence import documents
from rllib_arpo.core.metric import metric_rows
from rllib_arpo.learner.metrics import NUM_ALARMS, UPDATE_METRICS
from rllib_arpo.options.option import Method, Option, Reader
from rllib_arpo.options.tables import METHODS, OPTIONS
from rllib_arpo.rollout.metric_table import BATCH_METRICS, ROLLOUT_METRICS, TOOL_METRICS

REPOSITORY = Path(__file__).parents[1]
METHODS_FILE = '''"""The methods of `ARPOConfig` for options: `make generated` writes this file from `tables.py`."""

from typing import Any, Self

from ray.rllib.algorithms.algorithm_config import AlgorithmConfig, NotProvided

from rllib_arpo.options.option import sets
from rllib_arpo.options.tables import METHODS


class OptionMethods(AlgorithmConfig):
    """Sets options; it never validates them, since a value may be a search space of Tune."""

    def _set_provided(self, method: str, values: dict[str, Any]) -> Self:
        for name in METHODS[method].options:
            if values[name] is not NotProvided:
                setattr(self, name, values[name])
        return self
'''


#: The options to choose first -> advice on the value to begin with.
FIRST_OPTIONS = {
    "num_rollouts": "Take more if few questions have returns that differ.",
    "num_initial_rollouts": (
        "Take 2 of 16 if calls cost more than tokens and decisions come late. The paper has 8 of 16 "
        "([why](algorithm.md#which-responses-are-forked))."
    ),
    "branch_width": 'Take `"wide"` with few initial rollouts, otherwise 1.',
    "branch_threshold": (
        '0.5 forks at any rise of the entropy; `"auto"` follows the run. '
        "[`rllib-arpo entropy`](evaluate.md#the-entropy) shows beforehand how many responses a value would fork."
    ),
    "max_tool_calls": "Set it well above the needs of a good solution; 3 is too few for most agents.",
}


def methods_file(_text: str) -> str:
    return METHODS_FILE + "".join(map(method_source, METHODS, METHODS.values()))


def method_source(name: str, method: Method) -> str:
    keywords = [f"{option}: {declared.rule.type} = NotProvided" for option, declared in method.options.items()]
    lines = [
        "",
        f'    @sets(METHODS["{name}"])',
        f"    def {name}(",
        *(f"        {line}," for line in ["self", "*", *keywords, *(["**kwargs: Any"] if method.of_rllib else [])]),
        "    ) -> Self:",
        *([f"        super().{name}(**kwargs)"] if method.of_rllib else []),
        f'        return self._set_provided("{name}", locals())',
        "",
    ]
    return "\n".join(lines)


def option_rows(method: Method) -> list[str]:
    """The last column is left out if an evaluation has no value of its own for any of these options."""
    in_evaluation = any(option.reader is not Reader.TRAINING for option in method.options.values())
    header = ["option", "default", "meaning", "in evaluation"]
    rows = [header, ["---"] * len(header), *map(_row, method.options, method.options.values())]
    return [f"| {' | '.join(cells if in_evaluation else cells[:-1])} |" for cells in rows]


def _row(name: str, option: Option) -> list[str]:
    default = "" if callable(option.default) else f"`{option.default!r}`"
    return [f"`{name}`", default, option.doc, option.reader.value]


def first_rows(advice: Mapping[str, str]) -> list[str]:
    """Args: `advice`: option -> the words in its row."""
    rows = [f"| `{name}` | `{OPTIONS[name].default!r}` | {words} |" for name, words in advice.items()]
    return ["| option | default | begin with |", "|---|---|---|", *rows]


def metric_table(place: str, rows: list[str]) -> list[str]:
    return [f"| under `{place}` | is |", "|---|---|", *rows]


#: Name -> the lines of the table.
TABLES: dict[str, list[str]] = {
    "rollout": metric_table(
        "env_runners/", [*metric_rows(ROLLOUT_METRICS), *metric_rows(TOOL_METRICS, "tools/<name>/")]
    ),
    "batch": metric_table("env_runners/", metric_rows(BATCH_METRICS)),
    "update": metric_table("learners/default_policy/", [*metric_rows(UPDATE_METRICS), *metric_rows([NUM_ALARMS])]),
    "first": first_rows(FIRST_OPTIONS),
    **{name: option_rows(method) for name, method in METHODS.items()},
}
_TABLE = re.compile(r"^<!-- table: (.+) -->\n(?:\|.*\n)*", re.MULTILINE)


def with_tables(text: str) -> str:
    """The page with its tables written anew."""

    def written(found: re.Match[str]) -> str:
        lines = documents.table(found[1]) if "|" in found[1] else TABLES[found[1]]
        return "\n".join([f"<!-- table: {found[1]} -->", *lines, ""])

    return _TABLE.sub(written, text)


#: File -> the function that turns its text into the new one.
GENERATED: dict[str, Callable[[str], str]] = {
    "docs/watch.md": with_tables,
    "docs/settings.md": with_tables,
    "docs/evidence.md": with_tables,
    "rllib_arpo/options/methods.py": methods_file,
}


if __name__ == "__main__":
    for file, generate in GENERATED.items():
        path = REPOSITORY / file
        path.write_text(generate(path.read_text()))
