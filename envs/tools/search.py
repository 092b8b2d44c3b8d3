"""The search tool: a local index or a search engine on the web, behind a cache of results."""

from __future__ import annotations

import asyncio
import functools
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, ClassVar

from rllib_arpo.envs.cache import ResultCache, read_json
from rllib_arpo.envs.errors import DataError, ToolError
from rllib_arpo.envs.fingerprint import fingerprint
from rllib_arpo.envs.per_loop import PerLoop
from rllib_arpo.envs.retrieval import web
from rllib_arpo.envs.retrieval.documents import Document
from rllib_arpo.envs.retrieval.index import index_marks
from rllib_arpo.envs.retrieval.local import LocalSource
from rllib_arpo.envs.tools.tool import Tool, ToolResult
from rllib_arpo.envs.validation import check_known

NOTHING_FOUND = "Nothing found."
#: Longer queries are refused.
MAX_QUERY_CHARS = 2000
LOCAL, OFFLINE = "local", "offline"
#: How the found passages are ordered.
ORDERS: dict[str, Callable[[list], list]] = {"best_first": list, "best_last": lambda found: found[::-1]}


@dataclass(frozen=True, kw_only=True)
class SearchTool(Tool):
    """Finds the `top_k` passages that match a query best.

    A query that is in `cache` is answered from there, whatever the back-end. What a web back-end finds is added to the
    cache; failures and empty results are not, nor are results of a local search. Equal queries that come at once go to
    a web back-end once. Results read "Page 1: ...\\nPage 2: ..."; those of `documents` are a passage a line.

    Attributes:
        backend: "local" (searches `documents` or `index`), "offline" (knows the cache only), or a name in
            `web.ENGINES`, whose key comes from the environment (BRAVE_API_KEY, SERPER_API_KEY, TAVILY_API_KEY).
        documents: a list of {"title", "text"} dicts, or a file that `retrieval.documents` reads. It is indexed once
            per process, in memory (about 1 kB a passage).
        index: a folder that `python -m rllib_arpo.envs.retrieval.build_index` made.
        cache: a sqlite file (all its users on one machine), or a .json file of the same entries {query: result}, which
            is never written and therefore not for web back-ends. A sqlite file that a web back-end has written to is
            refused to one with another name, `top_k`, `order` or `backend_options`; imported entries fit them all.
        top_k: number of passages shown; of a cached result, all are.
        order: "best_first" or "best_last".
        base_url: of a web back-end's server, where it is not the public one.
        backend_options: further parameters of a web back-end's requests.
        request_timeout_s: seconds of one request to a web back-end.
        rerank_model: a Hugging Face encoder that orders the best `rerank_candidates` passages of a local search anew.
        rerank_device: where it runs.
        rerank_prefixes: what it sees before a query and before a passage.
    """

    name: ClassVar[str] = "search"
    description: ClassVar[str] = "Searches for passages that answer a query, and shows the best ones."
    parameters: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "query": {"type": "string", "description": "What to search for, in a few words."}
    }
    stateless: ClassVar[bool] = True
    backend: str = LOCAL
    documents: str | Sequence[Document] | None = None
    index: str | None = None
    cache: str | None = None
    top_k: int = 3
    order: str = "best_first"
    base_url: str | None = None
    backend_options: Mapping[str, Any] = field(default_factory=dict)
    request_timeout_s: float = 10.0
    rerank_model: str | None = None
    rerank_candidates: int = 50
    rerank_device: str = "cpu"
    rerank_prefixes: tuple[str, str] = ("", "")
    timeout_s: float = 30.0
    max_result_tokens: int = 512
    max_concurrency: int | None = None
    max_attempts: int = 3

    def __post_init__(self):
        check_known([self.order], ORDERS, "order of search results")
        check_known([self.backend], [*LOCAL_SOURCES, *web.ENGINES], "search back-end")
        if self.top_k < 1:
            raise ValueError(f"top_k of the search tool must be at least 1, not {self.top_k}.")
        self._check_options()
        _ = self._source
        self._check_cache()

    def prepare(self) -> None:
        _ = self._known
        self._source.prepare()

    def inputs(self) -> Mapping[str, str]:
        paths = [self.documents] if isinstance(self.documents, str) else []
        if self.cache is not None and _is_json(self.cache):
            paths.append(self.cache)
        marks = {path: fingerprint([Path(path)]) for path in paths}
        return marks | ({self.index: fingerprint(index_marks(self.index))} if self.index else {})

    async def __call__(self, argument: str, state: Any) -> ToolResult:
        query = argument.strip()
        _check_query(query)
        return ToolResult(await (self._once(query) if self._on_the_web else self._answer(query)))

    async def _once(self, query: str) -> str:
        """`_answer`, shared by all who ask the same while it is on its way; who gives up does not stop it."""
        flights = _FLIGHTS.get()
        key = (self.base_url, json.dumps(self._settings()), self.cache, query)
        if key not in flights:
            flights[key] = asyncio.create_task(self._answer(query))
            flights[key].add_done_callback(functools.partial(_landed, flights, key))
        return await asyncio.shield(flights[key])

    async def _answer(self, query: str) -> str:
        if self._known is not None and (text := await asyncio.to_thread(self._look_up, query)) is not None:
            return text
        found = ORDERS[self.order](await self._source.search(query, self.top_k))
        if not found:
            return NOTHING_FOUND
        text = "\n".join(found) if self.documents else as_pages(found)
        if self._on_the_web and self._known is not None:
            await asyncio.to_thread(self._known.put, _normal(query), text)
        return text

    def _look_up(self, query: str) -> str | None:
        known = self._known.get(query)
        return self._known.get(_normal(query)) if known is None else known

    @property
    def _on_the_web(self) -> bool:
        return self.backend in web.ENGINES

    @functools.cached_property
    def _source(self) -> Any:
        """Has `prepare()` and `search(query, top_k)`."""
        return LOCAL_SOURCES.get(self.backend, _web)(self)

    @functools.cached_property
    def _known(self) -> ResultCache | dict[str, str] | None:
        """The results that are known."""
        if self.cache is None:
            return None
        if _is_json(self.cache):
            return _json_cache(self.cache, Path(self.cache).stat().st_mtime_ns)
        cache = _sqlite_cache(self.cache)
        if self._on_the_web:
            cache.keep_settings(json.dumps(self._settings()))
            self._check_settings(cache)  # Another tool may have been quicker.
        return cache

    def _check_options(self) -> None:
        """No option may be set that the back-end does not look at."""
        kind = "web" if self._on_the_web else self.backend
        for option, owner in _ONLY_FOR.items():
            if getattr(self, option) and kind != owner:
                raise ValueError(
                    f"{option!r} is an option of {owner} search back-ends, and the back-end is {self.backend!r}."
                )

    def _check_cache(self) -> None:
        if self.cache is None:
            return
        path = Path(self.cache)
        if not self._on_the_web and not path.is_file():
            raise DataError(f"{path}: no such file (the cache of the search tool).")
        if self._on_the_web and _is_json(self.cache):
            raise ValueError(
                f"{path}: a .json file cannot take new results; import it into a sqlite file with"
                f" python -m rllib_arpo.envs.cache import CACHE.sqlite {path.name}"
            )
        if not path.parent.is_dir():
            raise DataError(f"{path}: no such folder (for the cache of the search tool).")
        if self._on_the_web and not os.access(path if path.exists() else path.parent, os.W_OK):
            raise DataError(f"{path}: a web back-end must be able to write its cache, and this process cannot.")
        if self._on_the_web and path.exists():
            self._check_settings(_sqlite_cache(self.cache))

    def _settings(self) -> dict[str, Any]:
        """What a web back-end's results depend on beside the query."""
        options = json.loads(json.dumps(dict(self.backend_options), sort_keys=True, default=repr))
        return {"backend": self.backend, "top_k": self.top_k, "order": self.order, "backend_options": options}

    def _check_settings(self, cache: ResultCache) -> None:
        own, found = self._settings(), json.loads(cache.settings() or "{}")
        for name in own:
            if found.get(name, own[name]) != own[name]:
                raise ValueError(
                    f"{self.cache}: the results of this cache are those of {name}={found[name]!r}, and the search tool"
                    f" has {own[name]!r}: give it a cache of its own."
                )

    def __getstate__(self):
        return {option.name: getattr(self, option.name) for option in fields(self)}


class OfflineSource:
    """Knows nothing beyond the cache."""

    def prepare(self) -> None:
        return None

    async def search(self, query: str, top_k: int) -> list[str]:
        raise ToolError("The search cache has no result for this query.")


def as_pages(texts: Sequence[str]) -> str:
    """ "Page 1: ...\\nPage 2: ..."; every text in one line, as in ARPO's cache."""
    return "\n".join(f"Page {number}: {' '.join(text.split())}" for number, text in enumerate(texts, 1))


def _local(tool: SearchTool) -> LocalSource:
    return LocalSource(**{option.name: getattr(tool, option.name) for option in fields(LocalSource)})


def _offline(tool: SearchTool) -> OfflineSource:
    if tool.cache is None:
        raise ValueError("The search back-end 'offline' needs a `cache`.")
    return OfflineSource()


def _web(tool: SearchTool) -> web.WebEngine:
    engine = web.ENGINES[tool.backend]
    return engine(base_url=tool.base_url, options=tool.backend_options, timeout_s=tool.request_timeout_s)


#: Back-ends that ask nobody -> what makes their source; all others are web engines.
LOCAL_SOURCES: dict[str, Callable[[SearchTool], Any]] = {LOCAL: _local, OFFLINE: _offline}
#: Option -> the kind of back-end that it is for.
_ONLY_FOR = {
    "documents": LOCAL, "index": LOCAL, "rerank_model": LOCAL, "base_url": "web", "backend_options": "web",
}  # fmt: skip


def _check_query(query: str) -> None:
    if len(query) > MAX_QUERY_CHARS:
        raise ToolError(f"The query has {len(query)} characters; at most {MAX_QUERY_CHARS} are allowed.")
    try:
        query.encode()
    except UnicodeEncodeError as error:
        raise ToolError("The query is not valid Unicode text.") from error


def _normal(query: str) -> str:
    """The key of a new result: spaces at the ends, and their number in between, make no other query."""
    return " ".join(query.split())


def _landed(flights: dict, key: tuple, flight: asyncio.Task) -> None:
    del flights[key]
    if not flight.cancelled():
        flight.exception()  # Looked at, also where nobody waits for it any more.


#: (back-end, its settings, query) -> the answer that is on its way.
_FLIGHTS: PerLoop[dict[tuple, asyncio.Task]] = PerLoop(dict)


def _is_json(path: str) -> bool:
    return Path(path).suffix == ".json"


@functools.lru_cache(maxsize=4)
def _json_cache(path: str, mtime_ns: int) -> dict[str, str]:
    return read_json(path)


@functools.lru_cache(maxsize=8)
def _sqlite_cache(path: str) -> ResultCache:
    return ResultCache(path)
