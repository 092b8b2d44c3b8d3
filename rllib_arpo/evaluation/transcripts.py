"""All transcripts of an evaluation as one parquet file, a row for every sample."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rllib_arpo.evaluation.plan import Arm
from rllib_arpo.evaluation.store import ResultStore
from rllib_arpo.files import replace_file

_TURN = pa.struct(
    [
        ("text", pa.string()),
        ("num_tokens", pa.int32()),
        ("response", pa.string()),
        ("tool", pa.string()),
        ("tool_status", pa.string()),
        ("tool_seconds", pa.float64()),
        ("entropies", pa.list_(pa.float32())),
    ]
)
#: The columns: those of `QuestionRecord` and `SampleRecord`, the arm's names, and the commit that evaluated it.
SCHEMA = pa.schema(
    [
        ("model", pa.string()),
        ("style", pa.string()),
        ("task", pa.string()),
        ("number", pa.int64()),
        ("question_id", pa.string()),
        ("question", pa.string()),
        ("answers", pa.list_(pa.string())),
        ("ability", pa.string()),
        ("prompt", pa.string()),
        ("prompt_tokens", pa.int32()),
        ("sample", pa.int32()),
        ("seed", pa.int64()),
        ("turns", pa.list_(_TURN)),
        ("answer", pa.string()),
        ("reward", pa.float64()),
        ("accuracy", pa.float64()),
        ("correct", pa.bool_()),
        ("exact_match", pa.float64()),
        ("f1", pa.float64()),
        ("format_valid", pa.bool_()),
        ("tool_calls", pa.int32()),
        ("tool_calls_failed", pa.int32()),
        ("response_tokens", pa.int32()),
        ("stop_reason", pa.string()),
        ("truncated", pa.bool_()),
        ("masked", pa.bool_()),
        ("seconds", pa.float64()),
        ("commit", pa.string()),
    ]
)
#: Number of samples written at a time.
_BATCH = 1000


def write_transcripts(path: Path, store: ResultStore, arms: Sequence[Arm]) -> int:
    """Writes the samples of these arms and returns their number. The file is replaced in one step."""
    written = 0
    with replace_file(path) as partial, pq.ParquetWriter(partial, SCHEMA) as writer:
        for arm in arms:
            for batch in _batches(_samples(arm, store)):
                writer.write_table(pa.Table.from_pylist(batch, schema=SCHEMA))
                written += len(batch)
    return written


def _samples(arm: Arm, store: ResultStore) -> Iterator[dict[str, Any]]:
    names = {"model": arm.model.name, "style": arm.style, "task": arm.task}
    for record, commit in store.records(arm.name):
        shared = names | _fields(record, but="samples") | {"commit": commit}
        for sample in record.samples:
            turns = [dataclasses.asdict(turn) for turn in sample.turns]
            yield shared | _fields(sample, but="turns") | {"turns": turns}


def _fields(record: Any, but: str) -> dict[str, Any]:
    return {f.name: getattr(record, f.name) for f in dataclasses.fields(record) if f.name != but}


def _batches(samples: Iterator[dict[str, Any]]) -> Iterator[list[dict[str, Any]]]:
    batch: list[dict[str, Any]] = []
    for sample in samples:
        batch.append(sample)
        if len(batch) == _BATCH:
            yield batch
            batch = []
    if batch:
        yield batch
