"""Web search engines behind one interface: SearxNG, Brave, Serper and Tavily.

A back-end reads its key from an environment variable for each request and does not store it.
"""

from __future__ import annotations

import asyncio
import os
import re
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from rllib_arpo.envs.errors import ToolError, TransientToolError, is_transient
from rllib_arpo.envs.retrieval.index import show
from rllib_arpo.envs.retrieval.sources import SearchSource
from rllib_arpo.envs.support.per_loop import http_client
from rllib_arpo.envs.support.texts import valid_unicode

#: 432 and 433: a plan of Tavily is used up.
_REFUSED = frozenset({401, 403, 432, 433})
_MAX_DETAIL_BYTES, _MAX_DETAIL_CHARS = 4096, 200
_SECRET = re.compile(r"(api|access|subscription).?(key|token)|^(key|token|secret|authorization)$", re.IGNORECASE)
#: (method, path, parameters, headers) of a request.
Request = tuple[str, str, dict[str, Any], dict[str, str]]

_OWN_PARAMETERS = frozenset({"q", "query", "format", "count", "num", "max_results", "timeout"})


@dataclass(frozen=True, kw_only=True)
class WebOptions:
    """The settings with which a search engine on the web is asked.

    Attributes:
        base_url: the address of its server, if that is not the public one.
        backend_options: further parameters of its requests, under its own names ("language", "country", "topic", ...).
        request_timeout_s: seconds of one request.
    """

    base_url: str | None = None
    backend_options: Mapping[str, Any] = field(default_factory=dict)
    request_timeout_s: float = 10.0


@dataclass(frozen=True, kw_only=True)
class WebEngine(WebOptions, SearchSource):
    """A search engine on the web.

    Attributes:
        title: its name in messages.
        default_url: its public server's address; None: it has none.
        key_variable: the environment variable that holds the key; None: it needs none.
        snippet: the field of a result that has its text.

    Raises:
        ValueError: an option is the engine's own or a secret, or the address or the key is missing.
    """

    title: ClassVar[str]
    default_url: ClassVar[str | None] = None
    key_variable: ClassVar[str | None] = None
    snippet: ClassVar[str] = "content"

    def __post_init__(self) -> None:
        if self.url is None:
            raise ValueError(f"The search back-end {self.title} needs `base_url`, the address of its server.")
        if not self.url.startswith(("http://", "https://")):
            raise ValueError(f"base_url must begin with http:// or https://, and {self.url!r} does not.")
        for name in self.backend_options:
            if _SECRET.search(name):
                raise ValueError(f"{name!r} is not an option of a back-end: keys come from environment variables.")
            if name in _OWN_PARAMETERS:
                raise ValueError(f"{name!r} is not an option of a back-end: the search tool sets it itself.")
        if self.key_variable is not None and not self.key:
            raise ValueError(self._no_key())

    @property
    def url(self) -> str | None:
        url = self.base_url or self.default_url
        return None if url is None else url.rstrip("/")

    @property
    def key(self) -> str:
        """The key as the environment has it now; empty if there is none."""
        return os.environ.get(self.key_variable, "").strip() if self.key_variable else ""

    def _no_key(self) -> str:
        return f"The search back-end {self.title} needs a key in the environment variable {self.key_variable}."

    async def search(self, query: str, top_k: int) -> list[str]:
        """The texts of the best pages ("title: snippet", each in one line of valid Unicode), best first.

        Raises:
            TransientToolError: the engine is busy or cannot be reached.
            ToolError: it refuses the request or the key, or sends a reply of an unknown form.
        """
        if not query:
            raise ToolError("The query is empty.")
        if self.key_variable is not None and not self.key:
            raise ToolError(self._no_key())
        try:
            async with asyncio.timeout(self.request_timeout_s):
                reply = await self._ask(query, top_k)
        except TimeoutError as error:
            raise TransientToolError(f"{self.title} did not answer within {self.request_timeout_s:g} s.") from error
        try:
            pages = [show(_text(one, "title"), _text(one, self.snippet)) for one in self.results(reply)]
        except (AttributeError, KeyError, TypeError) as error:
            raise ToolError(f"{self.title} sent a reply that is not understood.") from error
        return [valid_unicode(" ".join(page.split())) for page in pages if page][:top_k]

    @abstractmethod
    def request(self, query: str, top_k: int) -> Request:
        """What is sent besides `backend_options`: GET sends the parameters in the address, POST as JSON."""

    @abstractmethod
    def results(self, reply: Any) -> Sequence[Mapping[str, Any]]:
        """The pages in a reply; AttributeError, KeyError or TypeError if it does not have the documented form."""

    async def _ask(self, query: str, top_k: int) -> Any:
        import httpx

        method, path, own, headers = self.request(query, top_k)
        parameters = {"params" if method == "GET" else "json": {**self.backend_options, **own}}
        try:
            response = await http_client().request(method, f"{self.url}{path}", headers=headers, **parameters)
        except httpx.TransportError as error:
            raise TransientToolError(f"{self.title} cannot be reached ({type(error).__name__}).") from error
        except httpx.DecodingError as error:
            raise ToolError(f"{self.title} sent a reply that is not understood.") from error
        if response.status_code != 200:
            # Not `response.text`: the reply chooses its character set, and some take quadratic time.
            raise self.refusal(response.status_code, response.content[:_MAX_DETAIL_BYTES].decode(errors="replace"))
        try:
            return response.json()
        except (ValueError, RecursionError) as error:
            raise ToolError(f"{self.title} sent a reply that is not JSON.") from error

    def refusal(self, status: int, detail: str) -> ToolError:
        """The error for a status that does not mean success."""
        if is_transient(status):
            return TransientToolError(f"{self.title} is busy or out of order (status {status}).")
        if status in _REFUSED:
            return ToolError(self.denial(status))
        detail = " ".join(detail.split()).replace(self.key or "\0", "***")[:_MAX_DETAIL_CHARS]
        return ToolError(f"{self.title} refused the request (status {status}): {detail}")

    def denial(self, status: int) -> str:
        return f"{self.title} refused the key in {self.key_variable} (status {status})."


class SearxNG(WebEngine):
    """Your own SearxNG server; `search.formats` of its settings.yml must contain `json`."""

    title = "SearxNG"

    def request(self, query: str, top_k: int) -> Request:
        return "GET", "/search", {"q": query, "format": "json"}, {}

    def results(self, reply: Any) -> Sequence[Mapping[str, Any]]:
        if not reply["results"] and reply.get("unresponsive_engines"):
            raise TransientToolError("No engine behind SearxNG answered.")
        return reply["results"]

    def denial(self, status: int) -> str:
        return f"SearxNG refused the request (status {status}): is json among search.formats of its settings.yml?"


class Brave(WebEngine):
    """The Brave Search API."""

    title = "Brave"
    default_url = "https://api.search.brave.com/res/v1"
    key_variable = "BRAVE_API_KEY"
    snippet = "description"

    def request(self, query: str, top_k: int) -> Request:
        plain = {"text_decorations": self.backend_options.get("text_decorations", "false")}
        headers = {"Accept": "application/json", "X-Subscription-Token": self.key}
        return "GET", "/web/search", {**plain, "q": query, "count": min(top_k, 20)}, headers

    def results(self, reply: Any) -> Sequence[Mapping[str, Any]]:
        if reply["type"] == "search" and "web" not in reply:
            return ()  # Nothing was found.
        return reply["web"]["results"]


class Serper(WebEngine):
    """Google's results by serper.dev; the answer box, if there is one, is the first page."""

    title = "Serper"
    default_url = "https://google.serper.dev"
    key_variable = "SERPER_API_KEY"
    snippet = "snippet"

    def request(self, query: str, top_k: int) -> Request:
        return "POST", "/search", {"q": query, "num": top_k}, {"X-API-KEY": self.key}

    def results(self, reply: Any) -> Sequence[Mapping[str, Any]]:
        box = reply.get("answerBox")
        if box is None:
            return reply["organic"]
        return [{**box, "snippet": _text(box, "answer") or _text(box, "snippet")}, *reply["organic"]]


class Tavily(WebEngine):
    """Tavily's Search API."""

    title = "Tavily"
    default_url = "https://api.tavily.com"
    key_variable = "TAVILY_API_KEY"

    def request(self, query: str, top_k: int) -> Request:
        own = {"query": query, "max_results": min(top_k, 20)}
        return "POST", "/search", own, {"Authorization": f"Bearer {self.key}"}

    def results(self, reply: Any) -> Sequence[Mapping[str, Any]]:
        return reply["results"]

    def denial(self, status: int) -> str:
        return f"Tavily refused the key in {self.key_variable} (status {status}), or its plan is used up."


#: Name of a web back-end -> its class.
ENGINES: dict[str, type[WebEngine]] = {"searxng": SearxNG, "brave": Brave, "serper": Serper, "tavily": Tavily}


def _text(result: Mapping[str, Any], name: str) -> str:
    value = result.get(name)
    if not isinstance(value, str | None):
        raise TypeError(f"{name} is not a string")
    return value or ""
