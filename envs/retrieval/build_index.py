"""Builds a search index in a folder (`rllib-arpo index`).

Files: .jsonl and .parquet (one passage a row: "text" or "contents", perhaps "title"), .txt (one passage a paragraph,
or a line), .json (a list of such rows, or a cache of search results: every distinct "Page N: ..." is a passage).
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

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

    The index is built in a folder of its own beside `output`, which is renamed at the end: however a build is
    interrupted, `output` is a whole index or does not exist. (A build that is killed leaves its folder, OUTPUT.*.)

    Args:
        overwrite: replace an existing index; this happens only at the end, so that it can be used until then.

    Raises:
        DataError: a file or a row does not fit (the message names both), there is no passage, `output` exists (and is
            not an index, or `overwrite` is not set).
    """
    output = Path(output)
    paths = [Path(file) for file in files]
    for path in paths:
        reader_of(path)
    _check_output(output, overwrite)
    output.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"{output.name}.", dir=output.parent) as folder:
        # The temporary folder itself is closed to other users.
        partial = Path(folder, output.name)
        (partial / TANTIVY_FOLDER).mkdir(parents=True)
        documents = _all_documents(paths, options or ReadOptions(), show_progress)
        number = add_documents(new_index(partial / TANTIVY_FOLDER), documents, HEAP_BYTES)
        if number == 0:
            raise DataError(f"{', '.join(map(str, paths)) or 'No file'}: there is no passage to index.")
        _finish(partial, {"version": VERSION, "num_passages": number, "files": [str(path) for path in paths]})
        _check_output(output, overwrite)
        if output.exists():
            output.rename(Path(folder, "old"))
        partial.rename(output)
    return number


def _check_output(output: Path, overwrite: bool) -> None:
    if not output.exists():
        return
    if not (output / INFO_FILE).is_file():
        raise DataError(f"{output}: exists and is not a search index; choose another folder.")
    if not overwrite:
        raise DataError(f"{output}: exists; say --overwrite to replace this index.")


def _all_documents(paths: Sequence[Path], options: ReadOptions, show_progress: bool) -> Iterator[Document]:
    from tqdm import tqdm

    num_bytes = sum(path.stat().st_size for path in paths)
    with tqdm(
        total=num_bytes, unit="B", unit_scale=True, desc="indexing", disable=not show_progress, mininterval=0.5
    ) as bar:
        for path in paths:
            yield from read_documents(path, options, bar.update)


def _finish(partial: Path, info: dict[str, Any]) -> None:
    """Gives tantivy's files the usual read permissions of this process's files, and writes INFO_FILE."""
    info_file = partial / INFO_FILE
    info_file.write_text(json.dumps(info, indent=2) + "\n", encoding="utf-8")
    for file in (partial / TANTIVY_FOLDER).iterdir():
        if file.suffix == ".lock":
            file.unlink()
        else:
            file.chmod(info_file.stat().st_mode)
