"""The readable text of a fetched page."""

from __future__ import annotations

import base64
import json
from dataclasses import asdict, dataclass
from pathlib import Path

from rllib_arpo.envs.errors import ToolError
from rllib_arpo.envs.sandbox.fork_server import CallStatus, ForkServer, shared_server
from rllib_arpo.envs.web.fetch import Fetched

#: Seconds and megabytes that one page may take; most take milliseconds.
TIME_LIMIT_S, MEMORY_MB = 10.0, 4096
#: Runs once in the process from which the pages' processes are forked; they find `reader.py` as the module `reader`.
_SETUP = f"""
import sys
import lxml.html, trafilatura
sys.path.insert(0, {str(Path(__file__).parent)!r})
import reader
sys.path.pop(0)
reader.warm_up()
"""


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
    kind = fetched.content_type.split(";")[0].strip().lower()
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


async def page_of(fetched: Fetched) -> Page:
    """The page's title and readable text: of HTML the main text, or all its text if no main text is found.

    Raises:
        ToolError: the page is neither HTML nor text, takes too long to read, or kills the process that reads it.
        BrokenToolError: no such process can be started.
    """
    arguments = {
        "content": base64.b64encode(fetched.content).decode(),
        "content_type": fetched.content_type,
        "html": is_html(fetched),
    }
    code = f"import reader; reader.answer({json.dumps(arguments)!r})"
    reply = await readers().run(code, TIME_LIMIT_S, MEMORY_MB)
    if reply.status == CallStatus.TIMEOUT:
        raise ToolError("The page takes too long to read.")
    # A library may have written lines before the last one.
    output = reply.output.strip().rpartition("\n")[2]
    if reply.status != CallStatus.OK:
        raise ToolError(f"The page cannot be read ({output or reply.status}).")
    found = json.loads(output)
    if found is None:
        raise ToolError(f"{fetched.url}: the page is not text, whatever its type says.")
    return Page(fetched.url, **found)


def readers() -> ForkServer:
    """The server of this process that reads pages."""
    return shared_server(_SETUP)
