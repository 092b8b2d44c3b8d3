"""The back-ends of the search tool: their names, their sources and their options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from rllib_arpo.envs.errors import ToolError
from rllib_arpo.envs.retrieval.local import LocalOptions, LocalSource
from rllib_arpo.envs.retrieval.source import SearchSource
from rllib_arpo.envs.retrieval.web_search import ENGINES, WebOptions
from rllib_arpo.envs.support.validation import check_known

LOCAL, OFFLINE, WEB = "local", "offline", "web"
#: Option that is unset by default -> the kind of back-end to which it belongs.
_OWNERS = {
    "documents": LOCAL, "index": LOCAL, "rerank_model": LOCAL, "base_url": WEB, "backend_options": WEB,
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class OfflineSource(SearchSource):
    """A source that knows only the cache."""

    async def search(self, query: str, top_k: int) -> list[str]:
        raise ToolError("The search cache has no result for this query.")


def on_the_web(backend: str) -> bool:
    """Whether a back-end asks a search engine on the web."""
    return backend in ENGINES


def make_source(backend: str, options: Mapping[str, Any]) -> SearchSource:
    """The source of a back-end.

    Args:
        backend: "local", "offline" or a name in `ENGINES`.
        options: those of the search tool, from which the source takes its own.

    Raises:
        ValueError: there is no such back-end, an option is for another kind of back-end, or one has a wrong value.
        DataError: the documents or the index do not exist.
    """
    check_known([backend], [LOCAL, OFFLINE, *ENGINES], "search back-end")
    kind = WEB if on_the_web(backend) else backend
    for option, owner in _OWNERS.items():
        if options[option] and owner != kind:
            raise ValueError(f"{option!r} is an option of {owner} search back-ends, and the back-end is {backend!r}.")
    if kind == WEB:
        return ENGINES[backend](**_own(options, WebOptions))
    if kind == LOCAL:
        return LocalSource(**_own(options, LocalOptions))
    if options["cache"] is None:
        raise ValueError("The search back-end 'offline' needs a `cache`.")
    return OfflineSource()


def _own(options: Mapping[str, Any], kind: type) -> dict[str, Any]:
    return {option.name: options[option.name] for option in fields(kind)}
