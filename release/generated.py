"""Writes lists and methods that follow from declarations into the files where people and editors read them.

    make generated

A page gets the list NAME of `LISTS` below its line `<!-- list: NAME -->`, docs/cluster.md the table of nodes, and
`rllib_arpo/options/methods.py` the methods of `ARPOConfig`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

from release.cluster import nodes
from rllib_arpo.core.metric import metric_lines
from rllib_arpo.learner.metrics import NUM_ALARMS, UPDATE_METRICS
from rllib_arpo.options.option import Method
from rllib_arpo.options.tables import METHODS
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
        for name in METHODS[method].options.keys() & values.keys():
            if values[name] is not NotProvided:
                setattr(self, name, values[name])
        return self
'''

#: A page in the help of an option, and the title of a section.
_NAMED_PAGE = re.compile(r'docs/(\w+)\.md(?:, "([^"]+)")?')


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


def with_links(words: str) -> str:
    """The help of an option; the pages and sections that it names have become links."""
    return _NAMED_PAGE.sub(lambda found: f"[{found[2] or found[1]}]({found[1]}.md{_anchor(found[2])})", words)


def _anchor(section: str | None) -> str:
    return f"#{section.lower().replace(' ', '-')}" if section else ""


def option_lines(method: Method) -> list[str]:
    return [f"- `{name}` (`{option.default!r}`): {with_links(option.doc)}" for name, option in method.options.items()]


#: Name -> the lines of the list.
LISTS: dict[str, list[str]] = {
    "rollout": [*metric_lines(ROLLOUT_METRICS), *metric_lines(TOOL_METRICS, "tools/<name>/")],
    "batch": metric_lines(BATCH_METRICS),
    "update": [*metric_lines(UPDATE_METRICS), *metric_lines([NUM_ALARMS])],
    **{name: option_lines(method) for name, method in METHODS.items()},
}
_LIST = re.compile(r"^<!-- list: (.+) -->\n(?:- .*\n)*", re.MULTILINE)


def with_lists(text: str) -> str:
    """The page with its lists written anew."""
    return _LIST.sub(lambda found: "\n".join([f"<!-- list: {found[1]} -->", *LISTS[found[1]], ""]), text)


_TABLE = re.compile(r"^<!-- table: nodes -->\n(?:\|.*\n)*", re.MULTILINE)


def with_table(text: str) -> str:
    """The page with its table written anew."""
    return _TABLE.sub("\n".join(["<!-- table: nodes -->", *nodes.table(), ""]), text)


#: File -> the function that turns its text into the new one.
GENERATED: dict[str, Callable[[str], str]] = {
    "docs/cluster.md": with_table,
    "docs/watch.md": with_lists,
    "docs/settings.md": with_lists,
    "rllib_arpo/options/methods.py": methods_file,
}


if __name__ == "__main__":
    for file, generate in GENERATED.items():
        path = REPOSITORY / file
        path.write_text(generate(path.read_text()))
