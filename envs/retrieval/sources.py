"""The sources that the search tool searches: their interface, passages on this machine, and the web.

The web is searched by Serper (serper.dev), which gives Google's results. Its key is read from an environment variable
for each request, and not stored.
"""

from __future__ import annotations

import asyncio
import functools
import os
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rllib_arpo.envs.errors import ToolError, TransientToolError, is_transient
from rllib_arpo.envs.retrieval.documents import Document, as_document
from rllib_arpo.envs.retrieval.index import (
    INFO_FILE,
    SearchIndex,
    build_in_memory,
    index_marks,
    open_folder,
    read_info,
    show,
)
from rllib_arpo.envs.support.data_files import fingerprint
from rllib_arpo.envs.support.per_loop import http_client
from rllib_arpo.envs.support.texts import valid_unicode

URL, KEY_VARIABLE = "https://google.serper.dev", "SERPER_API_KEY"
REQUEST_TIMEOUT_S = 10.0
_MAX_DETAIL_BYTES, _MAX_DETAIL_CHARS = 4096, 200
_NO_KEY = f"The search back-end 'serper' needs a key in the environment variable {KEY_VARIABLE}."
_NOT_UNDERSTOOD = "Serper sent a reply that is not understood."


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


@dataclass(frozen=True, kw_only=True)
class WebOptions:
    """The settings of a search on the web.

    Attributes:
        base_url: the address of a server with the same API, in place of Serper's own.
        backend_options: further parameters of the requests, under Serper's names ("gl", "hl", ...).
    """

    base_url: str | None = None
    backend_options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class WebSource(WebOptions, SearchSource):
    """Searches the web.

    Raises:
        ValueError: an option is the tool's own, the address has another form, or the key is missing.
    """

    def __post_init__(self) -> None:
        if self.base_url is not None and not self.base_url.startswith(("http://", "https://")):
            raise ValueError(f"base_url must begin with http:// or https://, and {self.base_url!r} does not.")
        for name in ("q", "num"):
            if name in self.backend_options:
                raise ValueError(f"{name!r} is not an option of a back-end: the search tool sets it itself.")
        if not _key():
            raise ValueError(_NO_KEY)

    async def search(self, query: str, top_k: int) -> list[str]:
        """The texts of the best pages ("title: snippet", each in one line of valid Unicode), best first.

        The answer box, if there is one, is the first page.
        """
        if not query:
            raise ToolError("The query is empty.")
        if not _key():
            raise ToolError(_NO_KEY)
        try:
            async with asyncio.timeout(REQUEST_TIMEOUT_S):
                reply = await self._ask({**self.backend_options, "q": query, "num": top_k})
        except TimeoutError as error:
            raise TransientToolError(f"Serper did not answer within {REQUEST_TIMEOUT_S:g} s.") from error
        try:
            pages = [show(_text(one, "title"), _text(one, "snippet")) for one in reply["organic"]]
            if box := reply.get("answerBox"):
                pages.insert(0, show(_text(box, "title"), _text(box, "answer") or _text(box, "snippet")))
        except (AttributeError, KeyError, TypeError) as error:
            raise ToolError(_NOT_UNDERSTOOD) from error
        return [valid_unicode(" ".join(page.split())) for page in pages if page][:top_k]

    async def _ask(self, parameters: Mapping[str, Any]) -> Any:
        import httpx

        url, key = f"{(self.base_url or URL).rstrip('/')}/search", _key()
        try:
            response = await http_client().post(url, json=parameters, headers={"X-API-KEY": key})
        except httpx.TransportError as error:
            raise TransientToolError(f"Serper cannot be reached ({type(error).__name__}).") from error
        except httpx.DecodingError as error:
            raise ToolError(_NOT_UNDERSTOOD) from error
        status = response.status_code
        if is_transient(status):
            raise TransientToolError(f"Serper is busy or out of order (status {status}).")
        if status in (401, 403):
            raise ToolError(f"Serper refused the key in {KEY_VARIABLE} (status {status}).")
        if status != 200:
            # Not `response.text`: the reply chooses its character set, and some take quadratic time.
            said = response.content[:_MAX_DETAIL_BYTES].decode(errors="replace").replace(key, "***")
            detail = " ".join(said.split())[:_MAX_DETAIL_CHARS]
            raise ToolError(f"Serper refused the request (status {status}): {detail}")
        try:
            return response.json()
        except (ValueError, RecursionError) as error:
            raise ToolError("Serper sent a reply that is not JSON.") from error


def _key() -> str:
    """The key as the environment has it now; empty if there is none."""
    return os.environ.get(KEY_VARIABLE, "").strip()


def _text(result: Mapping[str, Any], name: str) -> str:
    value = result.get(name)
    if not isinstance(value, str | None):
        raise TypeError(f"{name} is not a string")
    return value or ""
