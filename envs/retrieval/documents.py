"""Passages from files: .jsonl, .parquet, and .json."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rllib_arpo.envs.errors import DataError
from rllib_arpo.envs.support.data_files import check_unicode, json_values, opened_parquet, parse_json, table_rows

#: Columns (or keys) that hold a passage's text, in order of preference, and the one of its title, which a row may lack.
TEXT_COLUMNS = ("text", "contents")
TITLE_COLUMN = "title"

#: Endings of the files that are read.
SUFFIXES = (".jsonl", ".parquet", ".json")

#: (title, text), where the title may be empty; both are searched and shown.
Document = tuple[str, str]


def read_documents(path: str | Path) -> Iterator[Document]:
    """The documents of a file, one at a time.

    Raises:
        DataError: a row cannot be read, has no text, or its title is not a string; the message names the file and the
            row.
    """
    path = Path(path)
    check_readable(path)
    for row, record in enumerate(_parquet_rows(path)) if path.suffix == ".parquet" else _json_rows(path):
        yield as_document(record, f"{path}, row {row}")


def as_document(record: Any, where: str) -> Document:
    """A row as a document.

    Raises:
        DataError: it has no text, or the text is blank or not valid Unicode; the message begins with `where`.
    """
    if not isinstance(record, Mapping):
        raise DataError(f"{where}: a row must be an object with a text, not {type(record).__name__}.")
    column = next((c for c in TEXT_COLUMNS if isinstance(record.get(c), str)), None)
    if column is None:
        raise DataError(f"{where}: no text (one of the columns {', '.join(TEXT_COLUMNS)} must hold it).")
    title, text = record.get(TITLE_COLUMN) or "", record[column]
    if not isinstance(title, str):
        raise DataError(f"{where}: the title must be a string, not {type(title).__name__}.")
    if not text.strip():
        raise DataError(f"{where}: the text is blank.")
    try:
        check_unicode(title, text)
    except ValueError as error:
        raise DataError(f"{where}: {error}.") from error
    return title, text


def check_readable(path: Path) -> None:
    """Raises a `DataError` unless there is such a file, with an ending of those that are read."""
    if not path.is_file():
        raise DataError(f"{path}: no such file.")
    if path.suffix not in SUFFIXES:
        raise DataError(f"{path}: passages are read from files named {', '.join(SUFFIXES)}.")


def _json_rows(path: Path) -> Iterator[tuple[int, Any]]:
    for row, value in json_values(path):
        yield row, parse_json(value, f"{path}, row {row}") if isinstance(value, bytes) else value


def _parquet_rows(path: Path) -> Iterator[Any]:
    row = 0
    with opened_parquet(path) as file:
        names = [name for name in (TITLE_COLUMN, *TEXT_COLUMNS) if name in file.schema_arrow.names]
        for batch in file.iter_batches(batch_size=4096, columns=names):
            yield from table_rows(batch, f"{path}, one of the {batch.num_rows} rows from row {row} on")
            row += batch.num_rows
