"""Rows of data files and of Hugging Face data sets."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rllib_arpo.envs.errors import DataError
from rllib_arpo.envs.support.data_files import fingerprint, json_values, opened_parquet, parse_json, table_rows
from rllib_arpo.envs.support.texts import first_line

Row = dict[str, Any]
#: Files whose rows a process keeps: a run asks them in random order, and reads a dropped file for every question.
MAX_FILES = 1024


@dataclass(frozen=True)
class RowSource:
    """Rows in their order. Equal sources have the same rows.

    Attributes:
        name: the file's path, or the data set's name; error messages begin with it.
        version: of the content; a text is a mark of it, the same in every process.
        size: number of rows.
        columns: the columns of all rows; None if every row has keys of its own.
        reader: takes the columns that are needed, and returns what reads a row: index -> (number in the file or data
            set, row).
        first: the first row with these columns, without reading the others; {} if there is none.
    """

    name: str
    version: Any
    size: int = field(compare=False)
    columns: tuple[str, ...] | None = field(compare=False)
    reader: Callable[[tuple[str, ...]], Callable[[int], tuple[int, Row]]] = field(compare=False)
    first: Callable[[tuple[str, ...]], Row] = field(compare=False)

    def mark(self) -> str:
        """A mark of the content, the same in every process."""
        return self.version if isinstance(self.version, str) else fingerprint([Path(self.name)])

    def row(self, index: int, columns: tuple[str, ...] | None) -> tuple[int, Row]:
        """(number in the file or data set, row).

        Args:
            columns: all columns that the caller needs; missing ones are left out. None: all that there are.

        Raises:
            DataError: the row is not readable.
        """
        return _reader(self, (self.columns or ()) if columns is None else self.known(columns))(index)

    def known(self, columns: tuple[str, ...]) -> tuple[str, ...]:
        """Those of `columns` that this source has."""
        return tuple(name for name in columns if self.columns is None or name in self.columns)


@functools.lru_cache(MAX_FILES)
def _reader(source: RowSource, columns: tuple[str, ...]) -> Callable[[int], tuple[int, Row]]:
    """Shared by all tasks of the process."""
    return source.reader(columns)


def open_file(path: str) -> RowSource:
    """The rows of a .parquet, .json or .jsonl file.

    Raises:
        DataError: the file is missing or not readable, or has another ending.
    """
    file = Path(path)
    if file.suffix not in _OPEN:
        raise DataError(f"{path}: rows are read from {', '.join(_OPEN)} files.")
    if not file.is_file():
        raise DataError(f"{path}: no such file.")
    stat = file.stat()
    return _open(path, (stat.st_mtime_ns, stat.st_size))


@functools.lru_cache(MAX_FILES)
def _open(path: str, version: tuple[int, int]) -> RowSource:
    return _OPEN[Path(path).suffix](path, version)


def _open_parquet(path: str, version: Any) -> RowSource:
    def reader(columns: tuple[str, ...]) -> Callable[[int], tuple[int, Row]]:
        with opened_parquet(path) as file:
            table = file.read(columns=list(columns))
        return lambda index: (index, table_rows(table.slice(index, 1), f"{path}, row {index}")[0])

    def first(columns: tuple[str, ...]) -> Row:
        with opened_parquet(path) as file:
            names = [name for name in columns if name in file.schema_arrow.names]
            return next((table_rows(batch, f"{path}, row 0")[0] for batch in file.iter_batches(1, columns=names)), {})

    with opened_parquet(path) as file:
        return RowSource(path, version, file.metadata.num_rows, tuple(file.schema_arrow.names), reader, first)


def _open_json(path: str, version: Any) -> RowSource:
    entries = list(json_values(path))

    def read(index: int) -> tuple[int, Row]:
        number, value = entries[index]
        place = f"{path}, row {number}"
        row = parse_json(value, place) if isinstance(value, bytes) else value
        if not isinstance(row, dict):
            raise DataError(f"{place}: not a JSON object.")
        return number, row

    return RowSource(path, version, len(entries), None, lambda _: read, lambda _: read(0)[1] if entries else {})


_OPEN = {".parquet": _open_parquet, ".json": _open_json, ".jsonl": _open_json}


@functools.lru_cache(maxsize=16)
def open_hub(hub_id: str, config: str | None, split: str) -> RowSource:
    """The rows of one split of a Hugging Face data set: an id on the hub, or a folder (of files, or by `save_to_disk`).

    Raises:
        DataError: the `datasets` library is missing, or it cannot load the data set.
    """
    name = f"{hub_id}{f' ({config})' if config else ''}, split {split!r}"
    try:
        import datasets
    except ImportError as error:
        raise DataError(f"{name}: needs the `datasets` library (pip install rllib-arpo[tasks]).") from error
    saved = any((Path(hub_id) / file).is_file() for file in ("dataset_dict.json", "state.json"))
    try:
        if saved:
            found = datasets.load_from_disk(hub_id)
            dataset = found[split] if isinstance(found, datasets.DatasetDict) else found
        else:
            dataset = datasets.load_dataset(hub_id, config, split=split)
    except (datasets.exceptions.DatasetsError, OSError, ValueError, KeyError) as error:
        reason = first_line(error)
        raise DataError(f"{name}: cannot be loaded ({reason}). env_config['path'] names a local file.") from error

    def reader(columns: tuple[str, ...]) -> Callable[[int], tuple[int, Row]]:
        # Columns that are not needed are not decoded (images, ...). A saved data set may have the format of numpy.
        selected = dataset.with_format(None).select_columns([name for name in columns if name in dataset.column_names])
        return lambda index: (index, selected[index])

    def first(columns: tuple[str, ...]) -> Row:
        return reader(columns)(0)[1] if len(dataset) else {}

    return RowSource(name, dataset._fingerprint, len(dataset), tuple(dataset.column_names), reader, first)


def all_rows(source: RowSource, columns: tuple[str, ...]) -> Iterator[tuple[int, Row]]:
    """(number in the file or data set, row) of every row, with these columns of it."""
    return (source.row(index, columns) for index in range(source.size))
