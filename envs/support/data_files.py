"""Data files: their contents (a `DataError` says where a fault is), and hashes that show whether they changed."""

from __future__ import annotations

import codecs
import hashlib
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO

from rllib_arpo.envs.errors import DataError
from rllib_arpo.envs.support.texts import first_line

#: The hash of longer files covers only their beginning and their end.
_WHOLE_FILE_BYTES, _PART_BYTES = 64 << 20, 1 << 20


@contextmanager
def opened(path: str | Path) -> Iterator[BinaryIO]:
    """The file, while it is read.

    Raises:
        DataError: it cannot be opened, or an `OSError` occurs while it is read.
    """
    try:
        with open(path, "rb") as file:
            yield file
    except OSError as error:
        raise DataError(f"{path}: not readable ({first_line(error)}).") from error


@contextmanager
def opened_parquet(path: str | Path) -> Iterator[Any]:
    """The `pyarrow.parquet.ParquetFile`, while it is read.

    Raises:
        DataError: it cannot be opened, or pyarrow cannot read on.
    """
    import pyarrow
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            yield file
    except (pyarrow.ArrowException, OSError) as error:
        raise DataError(f"{path}: not a readable parquet file ({first_line(error)}).") from error


def read_json(path: str | Path) -> Any:
    """The contents of a JSON file.

    Raises:
        DataError: the file is not readable or not JSON.
    """
    with opened(path) as file:
        return parse_json(file.read(), str(path))


def json_values(path: str | Path) -> Iterator[tuple[int, Any]]:
    """(number of the row, its value) of a JSON list, or (number of the line, the line as bytes) of JSON lines.

    Blank lines are skipped. Many files called .json have JSON lines as well.

    Raises:
        DataError: the file is not readable, or a .json file has neither.
    """
    lines = Path(path).suffix == ".jsonl"
    with opened(path) as file:
        for number, line in enumerate(file):
            lines = lines or line.removeprefix(codecs.BOM_UTF8).lstrip().startswith(b"{")
            if line.strip() and not lines:
                break
            if line.strip():
                yield number, line
    if not lines:
        content = read_json(path)
        if not isinstance(content, list):
            raise DataError(f"{path}: a .json file holds a list of objects, or one object a line.")
        yield from enumerate(content)


def parse_json(content: bytes, place: str) -> Any:
    """The JSON value of a text in UTF-8 (or -16, -32), with or without a byte order mark.

    Raises:
        DataError: it is not JSON; the message begins with `place`.
    """
    try:
        return json.loads(content)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{place}: not JSON ({error}).") from error


def table_rows(table: Any, place: str) -> list[dict[str, Any]]:
    """The rows of an Arrow table or batch.

    Raises:
        DataError: a text is not UTF-8; the message begins with `place`.
    """
    try:
        rows: list[dict[str, Any]] = table.to_pylist()
        return rows
    except UnicodeDecodeError as error:
        raise DataError(f"{place}: not UTF-8 ({error}).") from error


def check_unicode(*texts: str) -> None:
    """Refuses half a surrogate pair, which JSON permits but no tokenizer accepts.

    Raises:
        ValueError: a string has one.
    """
    try:
        "".join(texts).encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"not valid Unicode ({error})") from error


def fingerprint(files: Iterable[Path]) -> str:
    """A hash of names, sizes and contents; of files over 64 MiB the first and the last MiB are read."""
    digest = hashlib.sha256()
    for file in sorted(set(files)):
        size = file.stat().st_size
        digest.update(f"{file.name} {size}\n".encode())
        with file.open("rb") as stream:
            if size <= _WHOLE_FILE_BYTES:
                digest.update(stream.read())
            else:
                digest.update(stream.read(_PART_BYTES))
                stream.seek(size - _PART_BYTES)
                digest.update(stream.read())
    return digest.hexdigest()[:16]
