"""The results that the search tool already knows, and those that it adds."""

from __future__ import annotations

import functools
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from rllib_arpo.envs.errors import DataError
from rllib_arpo.envs.support.cache import ResultCache
from rllib_arpo.envs.support.data_files import fingerprint
from rllib_arpo.envs.support.texts import seed_of_name


@dataclass(frozen=True)
class KnownResults:
    """Results of earlier searches.

    Attributes:
        path: a sqlite file of `ResultCache`.
        settings: the web back-end's settings, on which its results depend. None: nothing is added. A file holds the
            results of one configuration; imported entries fit any.

    Raises:
        ValueError: the file is .json, or holds results of other settings.
        DataError: there is no such file, or it cannot be written.
    """

    path: str
    settings: str | None = None

    def __post_init__(self) -> None:
        path = Path(self.path)
        if path.suffix == ".json":
            raise ValueError(
                f"{path}: a cache is a sqlite file; make one with rllib-arpo import-cache CACHE.sqlite {path.name}"
            )
        if self.settings is None:
            if not path.is_file():
                raise DataError(f"{self.path}: no such file (the cache of the search tool).")
            return
        if not path.parent.is_dir():
            raise DataError(f"{path}: no such folder (for the cache of the search tool).")
        if not os.access(path if path.exists() else path.parent, os.W_OK):
            raise DataError(f"{path}: a web back-end must be able to write its cache, and this process cannot.")
        if path.exists():
            self._opened(keep=False)

    def inputs(self) -> Mapping[str, str]:
        """Path -> a mark of the content, unless the tool adds to it."""
        return {} if self.settings is not None else {self.path: fingerprint([Path(self.path)])}

    @functools.cached_property
    def entries(self) -> ResultCache:
        """The results by the `search_key`s of their queries. The first use opens the file, and blocks.

        Raises:
            DataError: the file is not of this layout.
        """
        return self._opened(keep=True)

    def _opened(self, keep: bool) -> ResultCache:
        cache = _sqlite_file(self.path)
        if self.settings is not None and not cache.has_mark(seed_of_name(self.settings) >> 1, keep):
            raise ValueError(
                f"{self.path}: this cache holds results of another `top_k` or other `backend_options`: give the search"
                " tool a cache of its own."
            )
        return cache


@functools.lru_cache(maxsize=8)
def _sqlite_file(path: str) -> ResultCache:
    return ResultCache(path)
