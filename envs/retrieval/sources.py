"""The sources that the search tool searches: their interface, and the ones on this machine."""

from __future__ import annotations

import asyncio
import functools
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rllib_arpo.envs.retrieval.documents import Document, as_document
from rllib_arpo.envs.retrieval.index import INFO_FILE, SearchIndex, build_in_memory, index_marks, open_folder, read_info
from rllib_arpo.envs.support.data_files import fingerprint


class SearchSource(ABC):
    """Finds passages; a dataclass whose fields are its configuration."""

    def prepare(self) -> None:
        """Does the slow work of the first search in advance; blocks."""
        return None

    def inputs(self) -> Mapping[str, str]:
        """Path -> a fingerprint of the content, for every file that is searched."""
        return {}

    @abstractmethod
    async def search(self, query: str, top_k: int) -> list[str]:
        """The texts of the best passages, best first, at most `top_k`.

        Raises:
            TransientToolError: a repetition may help.
            ToolError: the query cannot be answered.
        """


@dataclass(frozen=True, kw_only=True)
class LocalOptions:
    """The settings of a search on this machine.

    Attributes:
        documents: a list of {"title", "text"} dicts, indexed once per process, in memory (about 1 kB a passage).
        index: a folder that `rllib-arpo index` made, in place of documents.
    """

    documents: Sequence[Mapping[str, str]] | None = None
    index: str | None = None


@dataclass(frozen=True, kw_only=True)
class LocalSource(LocalOptions, SearchSource):
    """Searches passages on this machine.

    Raises:
        ValueError: neither `documents` nor `index` is given, or both are.
        DataError: a document has no text, or the index is not finished.
    """

    def __post_init__(self) -> None:
        if bool(self.documents) == bool(self.index) or isinstance(self.documents, str):
            raise ValueError(
                "The search tool needs `documents` (a list of dicts) or `index` (a folder), and not both;"
                " or another `backend`."
            )
        if self.index:
            read_info(self.index)
        else:
            _ = self._listed

    def prepare(self) -> None:
        _ = self._opened

    def inputs(self) -> Mapping[str, str]:
        return {self.index: fingerprint(index_marks(self.index))} if self.index else {}

    async def search(self, query: str, top_k: int) -> list[str]:
        return await asyncio.to_thread(self._search, query, top_k)

    def _search(self, query: str, top_k: int) -> list[str]:
        return [text for _, text in self._opened.search(query, top_k)]

    @functools.cached_property
    def _opened(self) -> SearchIndex:
        """The index, built or opened at the first call and shared by all tools of this process."""
        with _INDEX_LOCK:
            if self.index:
                return _index(open_folder, self.index, Path(self.index, INFO_FILE).stat().st_mtime_ns)
            return _index(build_in_memory, self._listed, None)

    @functools.cached_property
    def _listed(self) -> tuple[Document, ...]:
        """The documents, read."""
        return tuple(as_document(one, f"documents[{row}]") for row, one in enumerate(self.documents or ()))


_INDEX_LOCK = threading.Lock()


@functools.lru_cache(maxsize=8)
def _index(make: Callable[[Any], SearchIndex], origin: Hashable, mark: Hashable) -> SearchIndex:
    """The index that `make` makes of `origin`; `mark` changes when its files do."""
    return make(origin)
