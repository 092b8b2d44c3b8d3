"""Replaces files in one step, and checks the files of a folder by their checksums."""

import fcntl
import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from pyarrow.fs import FileSelector, FileSystem, LocalFileSystem

#: This file has the SHA-256 of each file below its folder, by path, except subfolders with their own such file.
CHECKSUMS = "checksums.json"


@contextmanager
def replace_file(path: Path) -> Iterator[Path]:
    """Gives the path of a new file, which replaces `path` when the block ends. After an error `path` is unchanged.

    A reader sees the old file or the complete new one, even if the process is killed.
    """
    partial = path.with_name(f"{path.name}.partial")
    partial.unlink(missing_ok=True)
    try:
        yield partial
        partial.replace(path)
    except BaseException:
        with suppress(OSError):
            partial.unlink(missing_ok=True)
        raise


def take_lock(file: IO[Any], message: str) -> None:
    """Locks an open file until it is closed, or until the process ends in any way.

    Raises:
        ValueError: another process has the lock; the text is `message`. The file is then closed.
    """
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        file.close()
        raise ValueError(message) from None


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Writes a value as JSON, in place of the file."""
    with replace_file(path) as partial:
        partial.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def write_checksums(folder: str, filesystem: FileSystem) -> None:
    """Writes `CHECKSUMS`. Call it when all other files are complete."""
    files = [info.path for info in filesystem.get_file_info(FileSelector(folder, recursive=True)) if info.is_file]
    own = f"{folder}/{CHECKSUMS}"
    others = [path.removesuffix(CHECKSUMS) for path in files if path.endswith(f"/{CHECKSUMS}") and path != own]
    sums = {
        path.removeprefix(f"{folder}/"): _sha256(path, filesystem)
        for path in files
        if path != own and not any(path.startswith(other) and path != other + CHECKSUMS for other in others)
    }
    with filesystem.open_output_stream(own) as file:
        file.write(json.dumps(sums, indent=0).encode())


def check_files(folder: str, filesystem: FileSystem) -> None:
    """Compares the files of a folder with its `CHECKSUMS`.

    Raises:
        ValueError: a file, or `CHECKSUMS`, is missing or is not the one that was saved.
    """
    own = f"{folder}/{CHECKSUMS}"
    if not filesystem.get_file_info(own).is_file:
        raise ValueError(f"{own} is missing: {folder} is not a whole checkpoint.")
    with filesystem.open_input_file(own) as file:
        text = file.read()
    try:
        sums = json.loads(text)
    except ValueError:
        raise ValueError(f"{own} is not the file that was saved: it is not JSON.") from None
    for name, expected in sums.items():
        path = f"{folder}/{name}"
        if not filesystem.get_file_info(path).is_file:
            raise ValueError(f"{path} is missing.")
        if _sha256(path, filesystem) != expected:
            raise ValueError(f"{path} is not the file that was saved: its checksum differs.")


def check_all_files(folder: str | Path) -> None:
    """Runs `check_files` on a local folder and on each folder within it that has its own `CHECKSUMS`."""
    for path in sorted({Path(folder, CHECKSUMS), *Path(folder).rglob(CHECKSUMS)}):
        check_files(str(path.parent), LocalFileSystem())


def _sha256(path: str, filesystem: FileSystem) -> str:
    with filesystem.open_input_file(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
