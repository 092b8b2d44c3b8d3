"""Every turn with its entropies as one parquet file."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rllib_arpo.core.entropy import ENTROPY_NORMALIZATIONS
from rllib_arpo.evaluation.entropy.nodes import INITIAL, deltas
from rllib_arpo.evaluation.entropy.summary import TaskEntropy
from rllib_arpo.files import replace_file

DELTA = "delta_"
#: A row for every turn. The columns are those of `SampledTurn` and the task's name; then, of turns that follow a tool
#: response (null for others): `rise` (nats per token over the window), `delta_...` (dH from the initial baseline in
#: each unit) and `children` (rule -> the expected number of children).
SCHEMA = pa.schema(
    [
        ("task", pa.string()),
        ("number", pa.int64()),
        ("question_id", pa.string()),
        ("sample", pa.int32()),
        ("round", pa.int32()),
        ("tool", pa.string()),
        ("read_ids", pa.list_(pa.int32())),
        ("token_ids", pa.list_(pa.int32())),
        ("entropies", pa.list_(pa.float32())),
        ("text", pa.string()),
        ("reward", pa.float64()),
        ("accuracy", pa.float64()),
        ("stop_reason", pa.string()),
        ("rise", pa.float64()),
        *((f"{DELTA}{name}", pa.float64()) for name in ENTROPY_NORMALIZATIONS),
        ("children", pa.map_(pa.string(), pa.float64())),
    ]
)


def write_table(path: Path, found: Sequence[TaskEntropy]) -> int:
    """Writes the turns of these tasks and returns their number. The file is replaced in one step."""
    written = 0
    with replace_file(path) as partial, pq.ParquetWriter(partial, SCHEMA) as writer:
        for task in found:
            writer.write_table(pa.Table.from_pylist(list(_rows(task)), schema=SCHEMA))
            written += len(task.turns)
    return written


def _rows(found: TaskEntropy) -> Iterator[dict[str, Any]]:
    rises = {name: deltas(found.nodes, INITIAL, name, found.vocab_size) for name in ENTROPY_NORMALIZATIONS}
    place = {id(node.turn): i for i, node in enumerate(found.nodes)}
    for turn in found.turns:
        row = {"task": found.task} | {f.name: getattr(turn, f.name) for f in dataclasses.fields(turn)}
        i = place.get(id(turn))
        if i is not None:
            row |= {f"{DELTA}{name}": float(values[i]) for name, values in rises.items()}
            row["rise"] = found.nodes[i].rise
            row["children"] = {rule.name: float(made.children[i]) for rule, made in found.forks.items()}
        yield row
