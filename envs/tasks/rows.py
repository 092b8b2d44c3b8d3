"""Rows of data files and of Hugging Face data sets, read block by block, on demand.

A block is the unit of decoding: a row group of a parquet file, some thousand lines of JSON lines, a whole JSON file, a
whole (memory-mapped) data set. A process keeps a few blocks.
"""

from __future__ import annotations

import codecs
import dataclasses
import functools
import itertools
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rllib_arpo.envs.errors import DataError
from rllib_arpo.envs.support.data_files import opened, opened_parquet, parse_json, read_json, table_rows
from rllib_arpo.envs.support.fingerprint import fingerprint
from rllib_arpo.envs.support.texts import first_line

#: Blocks that a process keeps decoded.
CACHED_BLOCKS = 4
#: Rows of a block of JSON lines.
LINES_PER_BLOCK = 10_000

Row = dict[str, Any]


@dataclass(frozen=True)
class RowSource(ABC):
    """Rows in blocks. Equal sources have the same rows.

    Attributes:
        name: the file's path, or the data set's name; error messages begin with it.
        version: of the content.
        sizes: number of rows of every block.
        columns: the columns of all rows; None if every row has keys of its own.
    """

    name: str
    version: Any
    sizes: tuple[int, ...] = dataclasses.field(compare=False)
    columns: tuple[str, ...] | None = dataclasses.field(compare=False)

    @abstractmethod
    def load(self, block: int, columns: tuple[str, ...]) -> Any:
        """The block, decoded as far as this makes sense for all of its rows at once."""

    @abstractmethod
    def pick(self, loaded: Any, block: int, index: int) -> tuple[int, Row]:
        """(number in the file or data set, row) of row `index` of a loaded block."""

    def mark(self) -> str:
        """A mark of the content, the same in every process."""
        return fingerprint([Path(self.name)])

    def begin(self, block: int) -> int:
        """The number of the block's first row."""
        return sum(self.sizes[:block])

    def row(self, block: int, index: int, columns: tuple[str, ...]) -> tuple[int, Row]:
        """(number in the file or data set, row).

        Args:
            columns: all columns that the caller needs; missing ones are left out.

        Raises:
            DataError: the block or the row is not readable.
        """
        if self.columns is not None:
            columns = tuple(name for name in columns if name in self.columns)
        return self.pick(load_block(self, block, columns), block, index)


@functools.lru_cache(maxsize=CACHED_BLOCKS)
def load_block(source: RowSource, block: int, columns: tuple[str, ...]) -> Any:
    """`source.load`; shared by all tasks of the process."""
    return source.load(block, columns)


@dataclass(frozen=True)
class ParquetRows(RowSource):
    """A parquet file; blocks are its row groups."""

    def load(self, block: int, columns: tuple[str, ...]):
        import pyarrow
        import pyarrow.parquet

        try:
            with pyarrow.parquet.ParquetFile(self.name) as file:
                return file.read_row_group(block, columns=list(columns))
        except (pyarrow.ArrowException, OSError) as error:
            raise DataError(
                f"{self.name}, row {self.begin(block)}: row group {block} is not readable ({first_line(error)})."
            ) from error

    def pick(self, loaded, block: int, index: int) -> tuple[int, Row]:
        number = self.begin(block) + index
        return number, table_rows(loaded.slice(index, 1), f"{self.name}, row {number}")[0]


@dataclass(frozen=True)
class JsonLinesRows(RowSource):
    """A file with one JSON object a line; blank lines are skipped. A row's number is that of its line, from 0.

    Attributes:
        starts: (position in bytes, line number) where each block starts.
    """

    starts: tuple[tuple[int, int], ...] = dataclasses.field(default=(), compare=False)

    def load(self, block: int, columns: tuple[str, ...]) -> list[tuple[int, bytes]]:
        position, number = self.starts[block]
        with opened(self.name) as file:
            file.seek(position)
            lines = ((number + i, line) for i, line in enumerate(file) if line.strip())
            return list(itertools.islice(lines, self.sizes[block]))

    def pick(self, loaded: list[tuple[int, bytes]], block: int, index: int) -> tuple[int, Row]:
        number, line = loaded[index]
        place = f"{self.name}, row {number}"
        return number, _checked_object(parse_json(line, place), place)


@dataclass(frozen=True)
class JsonRows(RowSource):
    """A file with one JSON list of objects; a single block."""

    def load(self, block: int, columns: tuple[str, ...]) -> list:
        return _read_list(self.name)

    def pick(self, loaded: list, block: int, index: int) -> tuple[int, Row]:
        return index, _checked_object(loaded[index], f"{self.name}, row {index}")


@dataclass(frozen=True)
class HubRows(RowSource):
    """A data set of the `datasets` library, memory-mapped; a single block."""

    dataset: Any = dataclasses.field(default=None, compare=False)

    def mark(self) -> str:
        return str(self.version)

    def load(self, block: int, columns: tuple[str, ...]):
        # Columns that are not needed are not decoded (images, ...).
        return self.dataset.select_columns(list(columns))

    def pick(self, loaded, block: int, index: int) -> tuple[int, Row]:
        return index, loaded[index]


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


@functools.lru_cache(maxsize=256)
def _open(path: str, version: tuple[int, int]) -> RowSource:
    return _OPEN[Path(path).suffix](path, version)


def _open_parquet(path: str, version: Any) -> RowSource:
    with opened_parquet(path) as file:
        sizes = tuple(file.metadata.row_group(i).num_rows for i in range(file.num_row_groups))
        return ParquetRows(path, version, sizes, tuple(file.schema_arrow.names))


def _open_json_lines(path: str, version: Any) -> RowSource:
    starts: list[tuple[int, int]] = []
    sizes: list[int] = []
    position = 0
    with opened(path) as file:
        for number, line in enumerate(file):
            if line.strip():
                if not sizes or sizes[-1] == LINES_PER_BLOCK:
                    starts.append((position, number))
                    sizes.append(0)
                sizes[-1] += 1
            position += len(line)
    return JsonLinesRows(path, version, tuple(sizes), None, tuple(starts))


def _open_json(path: str, version: Any) -> RowSource:
    """Reads a list, or JSON lines, which many files called .json contain."""
    with opened(path) as file:
        first = next((line for line in file if line.strip()), b"")
    if first.removeprefix(codecs.BOM_UTF8).lstrip().startswith(b"{") and _is_json(first):
        return _open_json_lines(path, version)
    return JsonRows(path, version, (len(_read_list(path)),), None)


_OPEN: dict[str, Callable[[str, Any], RowSource]] = {
    ".parquet": _open_parquet,
    ".json": _open_json,
    ".jsonl": _open_json_lines,
}


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
    return HubRows(name, dataset._fingerprint, (len(dataset),), tuple(dataset.column_names), dataset)


def all_rows(source: RowSource, columns: tuple[str, ...]) -> Iterator[tuple[int, Row]]:
    """(number in the file or data set, row) of every row, with these columns of it."""
    for block, size in enumerate(source.sizes):
        for index in range(size):
            yield source.row(block, index, columns)


def _read_list(path: str) -> list:
    content = read_json(path)
    if not isinstance(content, list):
        raise DataError(f"{path}: a .json file holds a list of objects, or one object a line.")
    return content


def _is_json(line: bytes) -> bool:
    try:
        parse_json(line, "")
    except DataError:
        return False
    return True


def _checked_object(value: Any, place: str) -> Row:
    if not isinstance(value, dict):
        raise DataError(f"{place}: not a JSON object.")
    return value
