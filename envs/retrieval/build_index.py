"""Builds a search index in a folder (`rllib-arpo index`).

Files: .jsonl and .parquet (one passage a row: "text" or "contents", perhaps "title"), .txt (one passage a paragraph,
or a line), .json (a list of such rows, or a cache of search results: every distinct "Page N: ..." is a passage).
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
from collections.abc import Iterator, Sequence
from pathlib import Path

from rllib_arpo.envs.errors import DataError
from rllib_arpo.envs.retrieval.documents import (
    Document,
    ReadOptions,
    read_documents,
    reader_of,
)
from rllib_arpo.envs.retrieval.index import INFO_FILE, TANTIVY_FOLDER, VERSION, add_documents, new_index

#: Memory of the writer; with more memory it writes fewer pieces, which are merged later.
HEAP_BYTES = 256 << 20


def build_folder(
    files: Sequence[str | Path],
    output: str | Path,
    options: ReadOptions | None = None,
    overwrite: bool = False,
    show_progress: bool = True,
) -> int:
    """Indexes the passages of `files` and returns their number.

    The index is built in the folder `output`.partial, which is renamed at the end: however a build is interrupted,
    `output` is a whole index or does not exist. The next build removes the leftovers of an interrupted one.

    Args:
        overwrite: replace an existing index; this happens only at the end, so that it can be used until then.

    Raises:
        DataError: a file or a row does not fit (the message names both), there is no passage, `output` exists (and is
            not an index, or `overwrite` is not set), or another process is building it.
    """
    output = Path(output)
    paths = [Path(file) for file in files]
    for path in paths:
        reader_of(path)
    _check_output(output, overwrite)
    with _building_site(output) as partial:
        (partial / TANTIVY_FOLDER).mkdir()
        documents = _all_documents(paths, options or ReadOptions(), show_progress)
        number = add_documents(new_index(partial / TANTIVY_FOLDER), documents, HEAP_BYTES)
        if number == 0:
            raise DataError(f"{', '.join(map(str, paths)) or 'No file'}: there is no passage to index.")
        _finish(partial, {"version": VERSION, "num_passages": number, "files": [str(path) for path in paths]})
        _check_output(output, overwrite)
        _put_in_place(partial, output)
    return number


def _check_output(output: Path, overwrite: bool) -> None:
    if not output.exists():
        return
    if not (output / INFO_FILE).is_file():
        raise DataError(f"{output}: exists and is not a search index; choose another folder.")
    if not overwrite:
        raise DataError(f"{output}: exists; say --overwrite to replace this index.")


@contextlib.contextmanager
def _building_site(output: Path) -> Iterator[Path]:
    """An empty folder beside `output` that is locked against other processes, and gone after a failure."""
    partial = output.with_name(output.name + ".partial")
    partial.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(partial, os.O_RDONLY)
    try:
        _lock(descriptor, partial, output)
        for left in partial.iterdir():
            shutil.rmtree(left) if left.is_dir() else left.unlink()
        try:
            yield partial
        except BaseException:
            # Once the folder has its final name, another process may have a folder of the old name.
            if _is_there(descriptor, partial):
                shutil.rmtree(partial, ignore_errors=True)
            raise
    finally:
        os.close(descriptor)


def _lock(descriptor: int, partial: Path, output: Path) -> None:
    """Locks the folder; raises if another process has it, or has just given it its final name."""
    with contextlib.suppress(BlockingIOError):
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        if _is_there(descriptor, partial):
            return
    raise DataError(f"{output}: another process builds this index now.")


def _is_there(descriptor: int, partial: Path) -> bool:
    with contextlib.suppress(FileNotFoundError):
        return os.path.samestat(os.fstat(descriptor), partial.stat())
    return False


def _all_documents(paths: Sequence[Path], options: ReadOptions, show_progress: bool) -> Iterator[Document]:
    from tqdm import tqdm

    num_bytes = sum(path.stat().st_size for path in paths)
    with tqdm(
        total=num_bytes, unit="B", unit_scale=True, desc="indexing", disable=not show_progress, mininterval=0.5
    ) as bar:
        for path in paths:
            yield from read_documents(path, options, bar.update)


def _finish(partial: Path, info: dict) -> None:
    """Gives tantivy's files the usual read permissions of this process's files, and writes INFO_FILE."""
    info_file = partial / INFO_FILE
    info_file.write_text(json.dumps(info, indent=2) + "\n", encoding="utf-8")
    for file in (partial / TANTIVY_FOLDER).iterdir():
        if file.suffix == ".lock":
            file.unlink()
        else:
            file.chmod(info_file.stat().st_mode)
    for path in (info_file, partial / TANTIVY_FOLDER, partial):
        _sync(path)


def _put_in_place(partial: Path, output: Path) -> None:
    old = output.with_name(output.name + ".old")
    shutil.rmtree(old, ignore_errors=True)
    if output.exists():
        output.rename(old)
    partial.rename(output)
    _sync(output.parent)
    shutil.rmtree(old, ignore_errors=True)


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
