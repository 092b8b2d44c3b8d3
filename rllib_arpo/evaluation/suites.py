"""The suites of the ARPO paper: which tasks they have, which metric is a task's score, and where its file lies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rllib_arpo.envs.registry import task_keys
from rllib_arpo.envs.support.validation import check_known
from rllib_arpo.evaluation.metrics import PASS

#: Suite -> its tasks, in the paper's order.
SUITES: dict[str, tuple[str, ...]] = {
    "math": ("aime24", "aime25", "math500", "gsm8k", "math"),
    "knowledge": ("webwalker", "hotpotqa", "2wiki", "musique", "bamboogle"),
    "deepsearch": ("gaia", "hle", "simpleqa", "xbench", "webwalker"),
}
#: Task -> the metric that is its score, as in the paper; pass@1 for the others.
SCORES: dict[str, str] = dict.fromkeys(("hotpotqa", "2wiki", "musique", "bamboogle"), "f1")
SUFFIXES = (".jsonl", ".json", ".parquet")


def score_of(task: str) -> str:
    """The name of the metric that is the score of a task."""
    return SCORES.get(task, f"{PASS}1")


def suite_tasks(suites: Sequence[str]) -> list[str]:
    """The tasks of these suites; equal ones count once.

    Raises:
        ValueError: there is no such suite.
    """
    check_known(suites, SUITES, "suite")
    return list(dict.fromkeys(task for suite in suites for task in SUITES[suite]))


def with_data_files(
    root: Path, tasks: Sequence[str], configs: Mapping[str, Mapping[str, Any]]
) -> dict[str, dict[str, Any]]:
    """`configs` with a path below `root` for each of `tasks` that reads a file and states none.

    The file of the task "simpleqa" is simpleqa.jsonl, or simpleqa/test.jsonl as in the authors' repository, in lower or
    upper case; .json and .parquet are as good.

    Args:
        configs: task -> `env_config` keys.

    Raises:
        ValueError: a task has no file there, or two.
    """
    complete = {task: dict(keys) for task, keys in configs.items()}
    for task in tasks:
        keys = complete.setdefault(task, {})
        reads_file = "path" in task_keys(task)
        if reads_file and not any(keys.get(key) for key in ("path", "hub_id")):
            keys["path"] = str(_data_file(root, task))
    return complete


def _data_file(root: Path, task: str) -> Path:
    if not root.is_dir():
        raise ValueError(f"--data-root {root}: no such folder.")
    names = {f"{task}{suffix}" for suffix in SUFFIXES} | {f"{task}/test{suffix}" for suffix in SUFFIXES}
    files = [path for pattern in ("*", "*/test.*") for path in root.glob(pattern) if path.is_file()]
    found = sorted(path for path in files if path.relative_to(root).as_posix().lower() in names)
    if not found:
        raise ValueError(
            f"--data-root {root} has no file of the task {task!r}: neither {task}.jsonl (.json, .parquet) nor"
            f" {task}/test.jsonl; --data {task}=PATH names another."
        )
    if len(found) > 1:
        several = ", ".join(str(path.relative_to(root)) for path in found)
        raise ValueError(f"--data-root {root} has {len(found)} files of the task {task!r}: {several}.")
    return found[0]
