"""Hashes of files, which show later whether the files are still the same."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from pathlib import Path

#: The hash of longer files covers only their beginning and their end.
_WHOLE_FILE_BYTES, _PART_BYTES = 64 << 20, 1 << 20


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
