"""Passages from files: .jsonl, .parquet, and .json (a list of records)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rllib_arpo.envs.errors import DataError
from rllib_arpo.envs.support.data_files import check_unicode, opened, opened_parquet, parse_json, read_json, table_rows

#: Column (or key) names that hold a passage's text, in order of preference.
TEXT_COLUMNS = ("text", "contents")
TITLE_COLUMN = "title"

#: (title, text), where the title may be empty; both are searched and shown.
Document = tuple[str, str]


@dataclass(frozen=True, kw_only=True)
class ReadOptions:
    """The settings with which files are read.

    Attributes:
        text_column: the column (or key) of a passage's text; None: the first of `TEXT_COLUMNS` that a row has.
        title_column: the column (or key) of its title, which a row may lack.
    """

    text_column: str | None = None
    title_column: str = TITLE_COLUMN

    @property
    def text_columns(self) -> tuple[str, ...]:
        return TEXT_COLUMNS if self.text_column is None else (self.text_column,)


def read_documents(path: str | Path, options: ReadOptions | None = None) -> Iterator[Document]:
    """The documents of a file, one at a time.

    Raises:
        DataError: a row cannot be read, has no text, or its title is not a string; the message names the file and the
            row.
    """
    path, options = Path(path), options or ReadOptions()
    for where, record in reader_of(path)(path, options):
        yield as_document(record, f"{path}, {where}", options)


def as_document(record: Any, where: str, options: ReadOptions | None = None) -> Document:
    """A row as a document.

    Raises:
        DataError: it has no text, or the text is blank or not valid Unicode; the message begins with `where`.
    """
    options = options or ReadOptions()
    if not isinstance(record, Mapping):
        raise DataError(f"{where}: a row must be an object with a text, not {type(record).__name__}.")
    columns = options.text_columns
    column = next((c for c in columns if isinstance(record.get(c), str)), None)
    if column is None:
        known = f"one of the columns {', '.join(columns)}" if len(columns) > 1 else f"the column {columns[0]}"
        raise DataError(f"{where}: no text ({known} must hold it).")
    title, text = record.get(options.title_column) or "", record[column]
    if not isinstance(title, str):
        raise DataError(f"{where}: the title must be a string, not {type(title).__name__}.")
    if not text.strip():
        raise DataError(f"{where}: the text is blank.")
    try:
        check_unicode(title, text)
    except ValueError as error:
        raise DataError(f"{where}: {error}.") from error
    return title, text


def reader_of(path: Path) -> Callable[[Path, ReadOptions], Iterator[tuple[str, Any]]]:
    """The function of `READERS` that reads the file.

    Raises:
        DataError: there is no such file, or none of the functions reads it.
    """
    if not path.is_file():
        raise DataError(f"{path}: no such file.")
    if path.suffix not in READERS:
        raise DataError(f"{path}: passages are read from files named {', '.join(READERS)}.")
    return READERS[path.suffix]


def _read_jsonl(path: Path, options: ReadOptions) -> Iterator[tuple[str, Any]]:
    with opened(path) as file:
        for row, line in enumerate(file):
            if line.strip():
                yield f"row {row}", parse_json(line, f"{path}, row {row}")


def _read_parquet(path: Path, options: ReadOptions) -> Iterator[tuple[str, Any]]:
    row = 0
    with opened_parquet(path) as file:
        wanted = (options.title_column, *options.text_columns)
        names = [name for name in wanted if name in file.schema_arrow.names]
        for batch in file.iter_batches(batch_size=4096, columns=names):
            for record in table_rows(batch, f"{path}, one of the {batch.num_rows} rows from row {row} on"):
                yield f"row {row}", record
                row += 1


def _read_json(path: Path, options: ReadOptions) -> Iterator[tuple[str, Any]]:
    content = read_json(path)
    if not isinstance(content, list):
        raise DataError(f"{path}: a .json file of passages must hold a list.")
    return ((f"row {row}", record) for row, record in enumerate(content))


#: End of a file's name -> the function that reads its rows: (path, options) -> ("row 3", record), ...
READERS = {".jsonl": _read_jsonl, ".parquet": _read_parquet, ".json": _read_json}
