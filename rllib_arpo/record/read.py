"""Reads the record of a run: its files and their questions."""

import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rllib_arpo.record.question import RecordedQuestion, Row, recorded_question
from rllib_arpo.record.schema import EVALUATION, SCHEMA, SETTINGS_KEY, VERSION, VERSION_KEY


@dataclass(frozen=True, slots=True)
class RecordFile:
    """One file of a record with its settings."""

    path: Path
    settings: Mapping[str, Any]


def record_files(source: str | Path) -> list[RecordFile]:
    """The files of a record: a single parquet file, or all files below the folder of a run, trial or experiment.

    They are in the order of their iterations; training comes before the evaluation of the same iteration.

    Raises:
        ValueError: there is no record, or a file has another version.
    """
    source = Path(source)
    paths = [source] if source.is_file() else sorted((*source.glob("*.parquet"), *source.glob("**/trees/*.parquet")))
    if not paths:
        raise ValueError(f"{source}: is neither a parquet file of a record nor a folder that has trees/*.parquet.")
    return [RecordFile(path, _settings(path)) for path in sorted(set(paths), key=_position)]


def _position(path: Path) -> tuple[Path, str, bool]:
    """The folder, the iteration at the end of the file's name, and whether it is an evaluation."""
    name, _, iteration = path.stem.rpartition("-")
    return path.parent, iteration, name == EVALUATION


def _settings(path: Path) -> dict[str, Any]:
    try:
        schema = pq.read_schema(path)
    except (pa.ArrowInvalid, OSError) as error:
        raise ValueError(f"{path}: is not a parquet file ({error}).") from error
    metadata = schema.metadata or {}
    version = metadata.get(VERSION_KEY)
    if version is None:
        raise ValueError(f"{path}: is not a record of trees: its metadata lacks {VERSION_KEY.decode()}.")
    if version != str(VERSION).encode():
        raise ValueError(f"{path}: has version {version.decode()} of the record; this package reads version {VERSION}.")
    if missing := set(SCHEMA.names) - set(schema.names):
        raise ValueError(f"{path}: lacks the column {min(missing)!r}.")
    for name in SCHEMA.names:
        if schema.field(name) != SCHEMA.field(name):
            raise ValueError(f"{path}: the column {name!r} must be {SCHEMA.field(name).type} and is not.")
    try:
        return json.loads(metadata[SETTINGS_KEY])
    except (KeyError, ValueError) as error:
        raise ValueError(f"{path}: the settings in its metadata are missing or cannot be read.") from error


def questions(file: RecordFile, question_id: str | None = None) -> Iterator[RecordedQuestion]:
    """The questions of a file in their order; with `question_id` only the questions of this name."""
    filters = None if question_id is None else [("question_id", "=", question_id)]
    yield from questions_of(pq.read_table(file.path, filters=filters).to_pylist(), file.settings)


def numbered_questions(file: RecordFile, numbers: Collection[int]) -> Iterator[RecordedQuestion]:
    """The questions of a file with these numbers, in the order of the file."""
    yield from questions_of(pq.read_table(file.path, filters=[("number", "in", numbers)]).to_pylist(), file.settings)


def questions_of(rows: Sequence[Row], settings: Mapping[str, Any]) -> Iterator[RecordedQuestion]:
    """The questions of a record's rows, in their order."""
    begin = 0
    for end in range(1, len(rows) + 1):
        if end == len(rows) or _key(rows[end]) != _key(rows[begin]):
            yield recorded_question(rows[begin:end], settings)
            begin = end


def _key(row: Row) -> tuple[Any, ...]:
    return tuple(row[name] for name in ("purpose", "iteration", "number", "question_id"))
