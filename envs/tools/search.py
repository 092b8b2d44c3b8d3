"""The search tool: a local index or the web, behind a cache of results."""

from __future__ import annotations

import asyncio
import functools
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, ClassVar

from rllib_arpo.envs.errors import ToolError
from rllib_arpo.envs.retrieval.known import KnownResults
from rllib_arpo.envs.retrieval.sources import LocalOptions, LocalSource, SearchSource, WebOptions, WebSource
from rllib_arpo.envs.support.per_loop import shared_flight
from rllib_arpo.envs.support.texts import search_key
from rllib_arpo.envs.support.validation import check_known
from rllib_arpo.envs.tools.tool import Tool, ToolResult

NOTHING_FOUND = "Nothing found."
#: Longer queries are refused.
MAX_QUERY_CHARS = 2000
LOCAL, OFFLINE, WEB = "local", "offline", "serper"
#: Option that is unset by default -> the back-end to which it belongs.
_OWNERS = {"documents": LOCAL, "index": LOCAL, "base_url": WEB, "backend_options": WEB}


@dataclass(frozen=True, kw_only=True)
class SearchTool(Tool, LocalOptions, WebOptions):
    """Finds the `top_k` passages that match a query best.

    If `cache` holds a query, it answers the query, whatever the back-end. The tool adds results of the web to the
    cache, but neither failures, nor empty results, nor results of a local search. Equal queries at the same time go to
    the web once. Results read "Page 1: ...\\nPage 2: ..."; with `documents`, each line is a passage.

    Attributes:
        backend: "local" (with the `LocalOptions`), "offline" (only reads the cache), or "serper" (with the
            `WebOptions`), whose key comes from the environment (SERPER_API_KEY). A tool of your own asks other search
            engines (docs/agent.md).
        cache: a sqlite file (all its users on one machine); `rllib-arpo import-cache` makes one of a .json file {query:
            result}. If "serper" has written to it, the tool refuses it with another `top_k` or `backend_options`;
            imported entries fit all of them.
        top_k: the number of passages to show; a cached result is shown whole.
    """

    name: ClassVar[str] = "search"
    description: ClassVar[str] = "Searches for passages that answer a query, and shows the best ones."
    parameters: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "query": {"type": "string", "description": "What to search for, in a few words."}
    }
    backend: str = LOCAL
    cache: str | None = None
    top_k: int = 3
    timeout_s: float = 30.0
    max_result_tokens: int = 512
    max_concurrency: int | None = None
    max_attempts: int = 3

    def __post_init__(self) -> None:
        if self.top_k < 1:
            raise ValueError(f"top_k of the search tool must be at least 1, not {self.top_k}.")
        _ = self._source, self._known

    def prepare(self) -> None:
        if self._known is not None:
            _ = self._known.entries
        self._source.prepare()

    def inputs(self) -> Mapping[str, str]:
        return {**self._source.inputs(), **(self._known.inputs() if self._known is not None else {})}

    def read(self, argument: str) -> str:
        query = argument.strip()
        if len(query) > MAX_QUERY_CHARS:
            raise ToolError(f"The query has {len(query)} characters; at most {MAX_QUERY_CHARS} are allowed.")
        return query

    async def __call__(self, query: str) -> ToolResult:
        if self.backend != WEB:
            return ToolResult(await self._answer(query))
        same = (self.base_url, self._settings(), self.cache, query)
        return ToolResult(await shared_flight(same, lambda: self._answer(query)))

    async def _answer(self, query: str) -> str:
        known, key = self._known, search_key(query)
        if known is not None and (text := await asyncio.to_thread(lambda: known.entries.get(key))) is not None:
            return text
        found = await self._source.search(query, self.top_k)
        if not found:
            return NOTHING_FOUND
        text = "\n".join(found) if self.documents else as_pages(found)
        if known is not None and self.backend == WEB:
            await asyncio.to_thread(known.entries.put, key, text)
        return text

    @functools.cached_property
    def _source(self) -> SearchSource:
        """What the back-end searches.

        Raises:
            ValueError: there is no such back-end, an option is for another back-end, or one has a wrong value.
            DataError: the documents or the index do not exist.
        """
        check_known([self.backend], SOURCES, "search back-end")
        source: Any = SOURCES[self.backend]
        own = {option.name: getattr(self, option.name) for option in fields(source)}
        for option, owner in _OWNERS.items():
            if getattr(self, option) and option not in own:
                raise ValueError(f"{option!r} is an option of the back-end {owner!r}, not of {self.backend!r}.")
        return source(**own)

    def __getstate__(self) -> dict[str, Any]:
        # A copy opens the files itself.
        return {option.name: getattr(self, option.name) for option in fields(self)}

    @functools.cached_property
    def _known(self) -> KnownResults | None:
        if self.cache is None:
            return None
        return KnownResults(self.cache, self._settings() if self.backend == WEB else None)

    def _settings(self) -> str:
        """The settings on which results of the web depend, besides the query."""
        return json.dumps([self.backend, self.top_k, dict(self.backend_options)], sort_keys=True, default=repr)


def as_pages(texts: Sequence[str]) -> str:
    """ "Page 1: ...\\nPage 2: ..."; every text in one line, as in ARPO's cache."""
    return "\n".join(f"Page {number}: {' '.join(text.split())}" for number, text in enumerate(texts, 1))


@dataclass(frozen=True, kw_only=True)
class OfflineSource(SearchSource):
    """A source that knows only the cache."""

    cache: str | None

    def __post_init__(self) -> None:
        if self.cache is None:
            raise ValueError("The search back-end 'offline' needs a `cache`.")

    async def search(self, query: str, top_k: int) -> list[str]:
        raise ToolError("The search cache has no result for this query.")


#: Name of a back-end -> its class.
SOURCES: dict[str, type[SearchSource]] = {LOCAL: LocalSource, OFFLINE: OfflineSource, WEB: WebSource}
