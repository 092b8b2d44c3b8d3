"""Reads and writes the rows of a study: a row for each iteration of each run, in a file per run and in one table.

Iteration 0 is before the first update. Totals (`tool_calls`, tokens, seconds) sum all iterations so far; the other
figures describe the row's own iteration, and are null if it has none. `cpu_seconds` sums all threads of the run's
process; other runs at the same time change it less than `seconds`.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from rllib_arpo.envs.errors import DataError
from rllib_arpo.envs.support.data_files import opened_parquet
from rllib_arpo.files import replace_file

Row = Mapping[str, Any]

#: Column -> path below "env_runners" of a training result.
ROLLOUT_METRICS: dict[str, tuple[str, ...]] = {
    "sampled_accuracy": ("accuracy",),
    "pass_at_k": ("pass_at_k",),
    "initial_entropy": ("entropy", "initial"),
    "after_tool_entropy": ("entropy", "after_tool"),
    **{name: ("entropy", name) for name in ("delta", "delta_p10", "delta_p50", "delta_p90")},
    **{
        name: (name,)
        for name in (
            "fork_rate", "forks_per_question", "fork_depth_mean", "fork_depth_p10", "fork_depth_p90",
            "initial_rollouts_per_question", "topped_up_per_question", "resample_rounds", "questions_dropped",
        )
    },
    "decisive_auc": ("decisive", "auc"),
    "decisive_rise_share": ("decisive", "rise_share"),
    "other_rise_share": ("other", "rise_share"),
    "decisive_fork_share": ("decisive", "fork_share"),
}  # fmt: skip
#: Column -> path below "learners/default_policy".
LEARNER_METRICS = {
    "mixed_sign_share": ("mixed_sign_share",),
    "groups_without_signal": ("groups_without_signal",),
    "grad_norm": ("grad_norm",),
    "policy_entropy": ("entropy",),
}
#: All columns and their types. Rows of earlier studies lack some, and have some that are no longer written.
COLUMNS: dict[str, pa.DataType] = {
    **dict.fromkeys(("study", "arm"), pa.string()),
    **dict.fromkeys(("seed", "iteration", "last_iteration"), pa.int64()),
    **dict.fromkeys(("tool_calls", "generated_tokens", "computed_tokens"), pa.int64()),
    **dict.fromkeys(("seconds", "cpu_seconds", "accuracy"), pa.float64()),
    **dict.fromkeys((*ROLLOUT_METRICS, *LEARNER_METRICS), pa.float64()),
    **dict.fromkeys(("arguments", "settings_hash", "fork_rate_of", "package_version"), pa.string()),
    **dict.fromkeys(("start_model", "commit", "tree", "machine"), pa.string()),
}


def run_path(output: Path, arm: str, seed: int) -> Path:
    """The file of a run, with a JSON object in each line."""
    return output / f"{arm}-{seed}.jsonl"


def append_row(path: Path, row: Row) -> None:
    """Writes a row to the disk; missing columns become null."""
    with path.open("a") as file:
        file.write(json.dumps({name: row.get(name) for name in COLUMNS}, allow_nan=False) + "\n")
        file.flush()
        os.fsync(file.fileno())


def read_run(path: Path) -> list[dict[str, Any]]:
    """The rows of one run so far; a last line that was cut off by a kill is left out."""
    if not path.is_file():
        return []
    whole, _, _cut_off = path.read_text().rpartition("\n")
    rows = []
    for number, line in enumerate(whole.splitlines(), 1):
        try:
            rows.append(dict.fromkeys(COLUMNS) | json.loads(line))
        except (ValueError, TypeError) as error:
            raise DataError(f"{path}, line {number}: is not a row of a study ({error}).") from error
    return rows


def read_output(output: Path) -> list[dict[str, Any]]:
    """The rows of all runs of a folder; other files of JSON lines are left out."""
    rows = [row for path in sorted(output.glob("*-*.jsonl")) for row in read_run(path)]
    return in_order(row for row in rows if row["arm"] is not None)


def read_table(path: Path) -> list[dict[str, Any]]:
    """The rows of a .parquet file; a column that it lacks is null, and so is NaN, which earlier studies wrote.

    Raises:
        DataError: the file is not there, not readable, or has other rows.
    """
    with opened_parquet(path) as file:
        table = file.read()
        known = [name for name in COLUMNS if name in table.column_names]
        rows = table.select(known).cast(pa.schema([(name, COLUMNS[name]) for name in known])).to_pylist()
    if not rows or any(row.get(name) is None for row in rows for name in ("arm", "seed", "iteration")):
        raise DataError(f"{path}: has no rows of a study, which need an arm, a seed and an iteration.")
    return in_order({name: _or_null(row.get(name)) for name in COLUMNS} for row in rows)


def write_table(rows: Sequence[Row], path: Path) -> None:
    whole = [{name: row.get(name) for name in COLUMNS} for row in in_order(rows)]
    with replace_file(path) as scratch:
        pq.write_table(pa.Table.from_pylist(whole, pa.schema(list(COLUMNS.items()))), scratch)


def in_order(rows: Iterable[Row]) -> list[Any]:
    return sorted(rows, key=lambda row: (row["arm"], row["seed"], row["iteration"]))


def is_finished(rows: Sequence[Row], iterations: int) -> bool:
    """Whether a run has a row for every iteration up to its last."""
    return [row["iteration"] for row in rows] == list(range(iterations + 1))


def fork_rate(rows: Sequence[Row]) -> float:
    """The share of decided nodes that were forked, as the mean over a run's iterations.

    Raises:
        ValueError: no iteration decided anything.
    """
    rates = [row["fork_rate"] for row in rows if row["fork_rate"] is not None]
    if not rates:
        raise ValueError("The run has no fork rate, since it never decided whether to fork.")
    return float(np.mean(rates))


def _or_null(value: Any) -> Any:
    return None if isinstance(value, float) and np.isnan(value) else value
