"""The results that the search tool knows before it searches, and those that it adds."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from rllib_arpo.envs.errors import DataError
from rllib_arpo.envs.support.cache import ResultCache, read_texts
from rllib_arpo.envs.support.data_files import fingerprint


@dataclass(frozen=True)
class KnownResults:
    """Results of earlier searches, to which nothing is added.

    Attributes:
        path: a sqlite file of `ResultCache`, or a .json file {query: result}.

    Raises:
        DataError: there is no such file.
    """

    path: str

    def __post_init__(self) -> None:
        if not Path(self.path).is_file():
            raise DataError(f"{self.path}: no such file (the cache of the search tool).")

    def open(self) -> None:
        """Reads or opens the file; otherwise the first `get` does this. Blocks.

        Raises:
            DataError: the file is not of this layout.
        """
        _ = self._entries

    def get(self, query: str) -> str | None:
        """The result of a query, or None; leading, trailing and repeated spaces make no difference."""
        found = self._entries.get(query)
        return self._entries.get(normal(query)) if found is None else found

    def inputs(self) -> Mapping[str, str]:
        """Path -> a mark of the content, of a .json file."""
        return {self.path: fingerprint([Path(self.path)])} if _is_json(self.path) else {}

    @functools.cached_property
    def _entries(self) -> ResultCache | dict[str, str]:
        if _is_json(self.path):
            return _json_file(self.path, Path(self.path).stat().st_mtime_ns)
        return _sqlite_file(self.path)

    def __getstate__(self) -> dict[str, Any]:
        return {field.name: getattr(self, field.name) for field in fields(self)}


@dataclass(frozen=True)
class GrowingResults(KnownResults):
    """Results of a web back-end, in a sqlite file that takes new ones. It holds those of one configuration.

    Attributes:
        settings: name -> a JSON value on which the results depend, beside the query. Imported entries fit any settings.

    Raises:
        ValueError: the file is .json, or holds the results of other settings.
        DataError: the file cannot be written, or its folder is not there.
    """

    settings: Mapping[str, Any]

    def __post_init__(self) -> None:
        path = Path(self.path)
        if _is_json(self.path):
            raise ValueError(
                f"{path}: a .json file cannot take new results; import it into a sqlite file with"
                f" rllib-arpo import-cache CACHE.sqlite {path.name}"
            )
        if not path.parent.is_dir():
            raise DataError(f"{path}: no such folder (for the cache of the search tool).")
        if not os.access(path if path.exists() else path.parent, os.W_OK):
            raise DataError(f"{path}: a web back-end must be able to write its cache, and this process cannot.")
        if path.exists():
            self._check_settings(_sqlite_file(self.path))

    def put(self, query: str, result: str) -> None:
        """Adds a result; blocks."""
        self._entries.put(normal(query), result)

    @functools.cached_property
    def _entries(self) -> ResultCache:
        cache = _sqlite_file(self.path)
        cache.keep_settings(json.dumps(self.settings))
        self._check_settings(cache)  # Another tool may have been quicker.
        return cache

    def _check_settings(self, cache: ResultCache) -> None:
        found = json.loads(cache.settings() or "{}")
        for name, own in self.settings.items():
            if found.get(name, own) != own:
                raise ValueError(
                    f"{self.path}: the results of this cache are those of {name}={found[name]!r}, and the search tool"
                    f" has {own!r}: give it a cache of its own."
                )


def normal(query: str) -> str:
    """The key of a new result."""
    return " ".join(query.split())


def _is_json(path: str) -> bool:
    return Path(path).suffix == ".json"


@functools.lru_cache(maxsize=4)
def _json_file(path: str, mtime_ns: int) -> dict[str, str]:
    return read_texts(path)


@functools.lru_cache(maxsize=8)
def _sqlite_file(path: str) -> ResultCache:
    return ResultCache(path)
