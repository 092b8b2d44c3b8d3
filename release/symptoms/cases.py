"""The small model's recipe with one mistake each, and the metrics of its iterations as rows."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from release.evidence.study_run import find
from rllib_arpo import ARPOConfig

ROWS = Path(__file__).with_name("rows.parquet")
ITERATIONS = 24
#: Two optimizer steps an update, at the best learning rate for them (docs/evidence.md).
ARGUMENTS = ("--seed", "0", "--questions-per-minibatch", "4", "--lr", "2e-4")
#: Path in a training result.
METRICS = (
    "env_runners/accuracy",
    "env_runners/format_valid",
    "env_runners/pass_at_k",
    "env_runners/entropy/after_tool",
    "env_runners/fork_rate",
    "env_runners/tools/search/calls",
    "env_runners/tools/search/latency_p50",
    "env_runners/tools/search/timeouts",
    "learners/default_policy/engine_logprob_gap",
    "learners/default_policy/entropy",
    "learners/default_policy/groups_without_signal",
    "learners/default_policy/num_alarms",
)
SCHEMA = pa.schema(
    [
        ("case", pa.string()),
        ("iteration", pa.int64()),
        ("metric", pa.string()),
        ("value", pa.float64()),
        ("commit", pa.string()),
        ("machine", pa.string()),
    ]
)

#: Name -> the recipe's configuration with its mistake.
CASES: dict[str, Callable[[ARPOConfig], ARPOConfig]] = {
    "healthy": lambda config: config,
    "cold": lambda config: config.adaptive_rollout(temperature=0.2).training(lr=6e-4, questions_per_minibatch=8),
    "bfloat16": lambda config: config.language_model(dtype="bfloat16"),
    # In float32 ARPO refuses it at the start: the probe of the weights differs by more than 0.001 nats.
    "fp8": lambda config: config.language_model(dtype="bfloat16", engine_kwargs={"kv_cache_dtype": "fp8_e5m2"}),
    "timeouts": lambda config: config.environment(env_config={"tools": {"search": {"timeout_s": 0.02}}}),
}


def run_cases(names: Sequence[str], path: Path = ROWS, iterations: int = ITERATIONS) -> int:
    """Runs these cases; their rows replace the earlier ones in the file. Returns how many the file has."""
    kept = [row for row in read_rows(path) if row["case"] not in names] if path.exists() else []
    rows = kept + [row for name in names for row in run(name, iterations)]
    scratch = path.with_suffix(".unfinished")
    pq.write_table(pa.Table.from_pylist(sorted(rows, key=_order), SCHEMA), scratch)
    os.replace(scratch, path)
    return len(rows)


def read_rows(path: Path = ROWS) -> list[dict[str, Any]]:
    return pq.read_table(path).to_pylist()


def run(name: str, iterations: int) -> list[dict[str, Any]]:
    """The rows of one case: a metric that an iteration lacks has none."""
    from rllib_arpo.tracking.machine import commit, machine
    from tuned_examples import trails_small_arpo

    args = trails_small_arpo.parser.parse_args(ARGUMENTS)
    config = CASES[name](trails_small_arpo.make_config(trails_small_arpo.make_model(args), args))
    algorithm = config.callbacks([]).evaluation(evaluation_interval=None).build_algo()
    here = machine()
    own = {"case": name, "commit": commit() or "none", "machine": f"{here['cpu']}, {here['cores']} cores"}
    rows = []
    try:
        for iteration in range(1, iterations + 1):
            values = metrics(algorithm.train())
            row = own | {"iteration": iteration}
            rows += [row | {"metric": metric, "value": value} for metric, value in values.items()]
            print(name, iteration, {metric: round(value, 4) for metric, value in values.items()}, flush=True)
    finally:
        algorithm.stop()
    return rows


def metrics(result: Mapping[str, Any]) -> dict[str, float]:
    """Those of `METRICS` that a training result has."""
    found = {name: find(result, name.split("/")) for name in METRICS}
    return {name: value for name, value in found.items() if value is not None}


def _order(row: Mapping[str, Any]) -> tuple[str, int, str]:
    return row["case"], row["iteration"], row["metric"]
