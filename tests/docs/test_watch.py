"""docs/watch.md names every metric, and no other."""

import itertools
import re

from rllib_arpo.learner.metrics import Total, summarize
from rllib_arpo.rollout.metrics import OWN_NAMES, rollout_metrics
from tests.docs.pages import REPOSITORY
from tests.rollout.test_metrics import FORKED, asked


def documented(heading: str) -> set[str]:
    """The names in the first column of the table below a heading, "a_{b,c}" as "a_b" and "a_c"."""
    section = (REPOSITORY / "docs" / "watch.md").read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    rows = [line.split("|")[1:-1] for line in section.splitlines() if line.startswith("| `")]
    names = set()
    for name, words in ((name, row[1]) for row in rows for name in re.findall("`(.*?)`", row[0])):
        parts = [part.split(",") for part in re.split("[{}]", name)]
        expanded = {"".join(choice) for choice in itertools.product(*parts)}
        names |= expanded | ({f"{each}_lifetime" for each in expanded} if "`.._lifetime`" in words else set())
    return names


def test_the_metrics_of_the_rollout_are_documented():
    found = rollout_metrics([asked(FORKED)], seconds=1.0)
    names = {re.sub("^tools/[^/]*", "tools/<name>", re.sub("^stop/.*", "stop/<reason>", name)) for name in found}
    assert names - documented("Metrics of the rollout") == set()
    assert {name.split("/")[0] for name in documented("Metrics of the rollout")} == OWN_NAMES


def test_the_metrics_of_the_update_are_documented():
    found = summarize(dict.fromkeys(Total, 1.0), [1.0], has_reference=True)
    assert {*found, "num_alarms"} == documented("Metrics of the update")
