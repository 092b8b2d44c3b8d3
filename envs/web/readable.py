"""The readable text of a fetched page."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass

from rllib_arpo.envs.errors import ToolError
from rllib_arpo.envs.support.texts import valid_unicode
from rllib_arpo.envs.web.decoding import text_of
from rllib_arpo.envs.web.fetch import Fetched
from rllib_arpo.envs.web.readers import ask_reader


@dataclass(frozen=True, slots=True)
class Page:
    """The readable part of a page; `url` after redirects, `title` may be empty."""

    url: str
    title: str
    text: str

    def to_json(self) -> str:
        return json.dumps(asdict(self), ensure_ascii=False)

    @classmethod
    def from_json(cls, text: str) -> Page:
        return cls(**json.loads(text))

    def shown(self, text: str | None = None) -> str:
        """The page as the model reads it, or `text` under its head."""
        head = [f"Title: {self.title}"] if self.title else []
        return "\n".join([*head, f"URL: {self.url}", "", text or self.text or "(The page has no text.)"])


def is_html(fetched: Fetched) -> bool:
    """Whether the page is HTML rather than another kind of text.

    Raises:
        ToolError: it is neither.
    """
    kind = fetched.header("content-type").split(";")[0].strip().lower()
    begin = fetched.content[:1024].lstrip(b"\xef\xbb\xbf \t\r\n").lower()
    if kind == "application/pdf" or begin.startswith(b"%pdf-"):
        raise ToolError(f"{fetched.url}: the page is a PDF file; only HTML and plain text can be read.")
    if kind in _HTML_TYPES or (not kind and begin.startswith((b"<!doctype html", b"<html", b"<head", b"<body"))):
        return True
    if kind and not kind.startswith("text/") and kind not in _TEXT_TYPES and not kind.endswith(("+json", "+xml")):
        raise ToolError(f"{fetched.url}: the page is of the type {kind!r}; only HTML and plain text can be read.")
    return False


_HTML_TYPES = frozenset({"text/html", "application/xhtml+xml"})
_TEXT_TYPES = frozenset({"application/json", "application/xml", "application/javascript", "application/x-ndjson"})


async def page_of(fetched: Fetched, links: bool = False) -> Page:
    """The page's title and readable text.

    Args:
        links: keep the links' addresses (as Markdown).

    Raises:
        ToolError: the page is neither HTML nor text, or takes too long to read.
    """
    html = is_html(fetched)
    text = valid_unicode(text_of(fetched.content, fetched.header("content-type")))
    if "\0" in text:
        raise ToolError(f"{fetched.url}: the page is not text, whatever its type says.")
    return await page_of_html(text, fetched.url, links) if html else Page(fetched.url, "", text.strip())


async def page_of_html(html: str, url: str, links: bool = False) -> Page:
    """The title and the main text of an HTML document; all its text if no main text is found."""
    return Page(url, **await ask_reader("read_page", html=valid_unicode(html), url=url, links=links))
