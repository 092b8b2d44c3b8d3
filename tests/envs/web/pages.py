"""Pages on loopback for the browse tool, good and bad ones, and what the model must read of each."""

import asyncio
import gzip
import itertools
import time
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any

from rllib_arpo.core.tree import ToolStatus
from rllib_arpo.envs.tools.browse import BrowseTool
from rllib_arpo.envs.tools.tool import ToolResult, run_tool
from rllib_arpo.envs.web.reader import MAX_TEXT_CHARS
from tests.helpers.web_server import reply, serving

HOST = "127.0.0.1"
MAX_PAGE_BYTES = 1 << 20
#: Seconds of a call, on a busy machine; a page that never ends is given up after the second number.
PATIENT_S, TIMEOUT_S = 60.0, 3.0
OK, ERROR, TIMEOUT = ToolStatus.OK, ToolStatus.ERROR, ToolStatus.TIMEOUT

_PARAGRAPHS = (
    "The brass lamp costs 12 crowns, the oak chair 30. Both are made by hand in a small town by the sea. "
    "Whoever has one of them wants the other, too, and waits for it for a year or two.",
    "Every spring the makers bring their work to the market, where people from the whole country come to buy it. "
    "There are lamps of brass, copper and glass, and chairs of oak, pine and elm.",
)
ARTICLE = (
    "<html><head><title>Brass &amp; oak</title><style>p {color: red}</style></head>"
    "<body><nav><a href='/a'>Home</a> <a href='/b'>About</a></nav>"
    f"<article><h1>Lamps</h1><p>{_PARAGRAPHS[0]}</p><p>{_PARAGRAPHS[1]}</p><script>hidden()</script></article>"
    "</body></html>"
)
ARTICLE_TEXT = "\n".join(("Lamps", *_PARAGRAPHS))
_TOO_LARGE = "The page is larger than 1048576 bytes."


@dataclass(frozen=True)
class PageCase:
    """One page.

    Attributes:
        answer: what the server does.
        text: what the model must read; {url}: the page's address, {host}: the server's.
        path: what is asked for; None: /<name>.
        final: path of the address in the end; None: the same. It stands at the head of a page that could be read.
        title: which stands there too.
        options: of the tool.
    """

    name: str
    answer: Callable[[BaseHTTPRequestHandler], None]
    text: str
    status: ToolStatus = OK
    path: str | None = None
    final: str | None = None
    title: str = ""
    options: Mapping[str, Any] = field(default_factory=dict)

    @property
    def asked(self) -> str:
        return self.path or f"/{self.name}"

    def expected(self, host: str) -> ToolResult:
        url = f"{host}{self.final or self.asked}"
        text = self.text.replace("{url}", url).replace("{host}", host)
        if self.status == OK:
            text = "\n".join([*([f"Title: {self.title}"] if self.title else []), f"URL: {url}", "", text])
        return ToolResult(text, self.status)


def page(body: bytes | str, content_type: str = "text/html; charset=utf-8", **headers: str):
    """Answers with `body`; underscores in header names are hyphens."""
    headers = {"Content-Type": content_type, **{k.replace("_", "-"): v for k, v in headers.items()}}
    return lambda handler: reply(handler, body, headers=headers)


def status(code: int):
    return lambda handler: reply(handler, "<p>an error page</p>", code)


def redirect(location: str, code: int = 302):
    return lambda handler: reply(handler, "", code, {"Location": location})


def stream(pieces: Callable[[], Iterator[bytes]], delay_s: float = 0.0, head: str = "Content-Type: text/html"):
    """Writes `pieces` until the client hangs up or they end, then closes the connection."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(f"HTTP/1.0 200 OK\r\n{head}\r\n\r\n".encode() if head else b"")
        for piece in pieces():
            handler.wfile.write(piece)
            handler.wfile.flush()
            time.sleep(delay_s)

    return answer


def _endless_gzip() -> Iterator[bytes]:
    deflate = zlib.compressobj(9, wbits=31)
    zeros = bytes(1 << 20)
    return (deflate.compress(zeros) for _ in itertools.count())


def _cookie(handler: BaseHTTPRequestHandler) -> None:
    if handler.headers.get("Cookie") == "seen=1":
        reply(handler, "<p>welcome back</p>")
    else:
        reply(handler, "", 302, {"Location": "/cookie", "Set-Cookie": "seen=1"})


def _crumbs() -> Iterator[bytes]:
    """Chunks of one byte."""
    return iter([b"1\r\nx\r\n" * 30_000 + b"0\r\n\r\n"])


_ARTICLE_CASE = {"text": ARTICLE_TEXT, "title": "Brass & oak"}
_BOMB = gzip.compress(bytes(64 << 20))
_LONELY_GZIP = gzip.compress(ARTICLE.encode())

PAGES: Sequence[PageCase] = [
    PageCase("plain", page(ARTICLE), **_ARTICLE_CASE),
    PageCase("text", page("a < b\nsecond line\n", "text/plain"), "a < b\nsecond line"),
    PageCase("json", page('{"a": 1}', "application/json"), '{"a": 1}'),
    PageCase("no_type", stream(lambda: iter([b"<html><body>untyped page</body></html>"]), head="X: y"), "untyped page"),
    PageCase("empty", page(""), "(The page has no text.)"),
    PageCase(
        "links",
        page("<article><p>Read the <a href='more?a=1'>next page</a> for more about brass lamps.</p></article>"),
        "Read the [next page]({host}/more?a=1) for more about brass lamps.",
        options={"links": True},
    ),
    # Character sets.
    PageCase("latin_1", page("<p>Käse für 3 €".encode("cp1252"), "text/html; charset=ISO-8859-1"), "Käse für 3 €"),
    PageCase("cyrillic", page("<meta charset=windows-1251><p>лампа".encode("cp1251"), "text/html"), "лампа"),
    PageCase("utf_16", page("<p>Käse".encode("utf-16"), "text/html"), "Käse"),
    PageCase("hostile_charset", page("<p>Kase", "text/html; charset=idna"), "Kase"),
    # Redirects.
    PageCase("chain_1", redirect("/chain_2", 301), **_ARTICLE_CASE, final="/plain"),
    PageCase("chain_2", redirect("{host}/chain_3", 307), **_ARTICLE_CASE, final="/plain"),
    PageCase("chain_3", redirect("plain", 308), **_ARTICLE_CASE, final="/plain"),
    PageCase("cookie", _cookie, "welcome back"),
    PageCase("loop", redirect("/loop"), "{url}: more than 5 redirects.", ERROR),
    PageCase(
        "redirect_to_ftp",
        redirect("ftp://127.0.0.1/"),
        "ftp://127.0.0.1/: only addresses that begin with http:// or https:// can be opened.",
        ERROR,
    ),
    PageCase(
        "redirect_nowhere", lambda handler: reply(handler, "", 302), "{url}: the server answered 302 Found.", ERROR
    ),
    # Statuses.
    PageCase("missing", status(404), "{url}: the server answered 404 Not Found.", ERROR),
    PageCase("busy", status(429), "{url}: the server answered 429 Too Many Requests.", ERROR),
    # Compression.
    PageCase("gzip", page(_LONELY_GZIP, Content_Encoding="gzip"), **_ARTICLE_CASE),
    PageCase("gzip_garbage_after", page(gzip.compress(b"<p>one") + b"\0\0", Content_Encoding="gzip"), "one"),
    PageCase("gzip_bomb", page(_BOMB, Content_Encoding="gzip"), _TOO_LARGE, ERROR),
    PageCase("endless_gzip", stream(_endless_gzip, head="Content-Encoding: gzip"), _TOO_LARGE, ERROR),
    PageCase(
        "brotli", page(b"x", Content_Encoding="br"), "The page is encoded as 'br', which was not asked for.", ERROR
    ),
    PageCase(
        "gzip_cut_off", page(_LONELY_GZIP[:-20], Content_Encoding="gzip"), "The compressed page is cut off.", ERROR
    ),
    PageCase(
        "no_gzip",
        page(ARTICLE, Content_Encoding="gzip"),
        "The compressed page is broken (Error -3 while decompressing data: incorrect header check).",
        ERROR,
    ),
    # Streams.
    PageCase("as_large_as_allowed", page(b"x" * MAX_PAGE_BYTES, "text/plain"), "x" * MAX_TEXT_CHARS),
    PageCase("claims_to_be_huge", stream(lambda: iter([b"x"]), head="Content-Length: 99999999999"), _TOO_LARGE, ERROR),
    PageCase("endless", stream(lambda: itertools.repeat(b"<p>x" * 4096)), _TOO_LARGE, ERROR),
    PageCase("drip", stream(lambda: itertools.repeat(b"x"), 0.2), "Time limit of 3 s exceeded.", TIMEOUT),
    PageCase(
        "drip_of_headers",
        stream(lambda: itertools.repeat(b"a: b\r\n"), 0.2, "X: y\r\nX: z"),
        "Time limit of 3 s exceeded.",
        TIMEOUT,
    ),
    PageCase("silence", stream(lambda: iter([b""]), 30.0, ""), "Time limit of 3 s exceeded.", TIMEOUT),
    PageCase(
        "hangs_up",
        stream(lambda: iter([]), head=""),
        "{url}: the connection failed (Server disconnected without sending a response.).",
        ERROR,
    ),
    PageCase(
        "cut_off",
        stream(lambda: iter([b"x"]), head="Content-Length: 1000"),
        "{url}: the connection failed (peer closed connection without sending complete message body (received 1 bytes,"
        " expected 1000)).",
        ERROR,
    ),
    PageCase(
        "crumbs", stream(_crumbs, head="Transfer-Encoding: chunked"), "The page comes in more than 20000 pieces.", ERROR
    ),
    # Responses that are not pages.
    PageCase(
        "pdf",
        page(b"%PDF-1.7 ...", "application/pdf"),
        "{url}: the page is a PDF file; only HTML and plain text can be read.",
        ERROR,
    ),
    PageCase(
        "image",
        page(b"\x89PNG", "image/png"),
        "{url}: the page is of the type 'image/png'; only HTML and plain text can be read.",
        ERROR,
    ),
    PageCase(
        "binary", page(b"\x7fELF\0\0", "text/plain"), "{url}: the page is not text, whatever its type says.", ERROR
    ),
]


def open_pages(cases: Sequence[PageCase], num_concurrent: int = 8, **options: Any) -> dict[str, tuple]:
    """Opens every page once; `options` of the tool beside the cases' own. Page -> (what is read, what should be)."""
    with serving(HOST, site(cases)) as server:
        host = f"http://{HOST}:{server.port}"
        results = asyncio.run(_open_all(cases, host, options, num_concurrent))
    return {case.name: (result, case.expected(host)) for case, result in zip(cases, results, strict=True)}


def wrong_pages(cases: Sequence[PageCase], num_concurrent: int = 8, **options: Any) -> dict[str, tuple]:
    """Those of `open_pages` that are not read as they should be."""
    return {name: pair for name, pair in open_pages(cases, num_concurrent, **options).items() if pair[0] != pair[1]}


def tool_for(**options: Any) -> BrowseTool:
    defaults = {"max_page_bytes": MAX_PAGE_BYTES, "timeout_s": PATIENT_S, "max_attempts": 1, "ports": None}
    return BrowseTool(**{**defaults, "allow_private": [HOST], **options})


async def _open_all(cases, host, options, num_concurrent) -> list[ToolResult]:
    places = asyncio.Semaphore(num_concurrent)

    async def run(case: PageCase) -> ToolResult:
        async with places:
            limit = {"timeout_s": TIMEOUT_S} if case.status == TIMEOUT else {}
            return await run_tool(tool_for(**{**limit, **options, **case.options}), host + case.asked)

    return await asyncio.gather(*map(run, cases))


def site(cases: Sequence[PageCase]):
    """A route that serves every case (and `PAGES`, to which others refer)."""
    answers = {f"/{case.name}": case.answer for case in (*PAGES, *cases)}

    def route(handler: BaseHTTPRequestHandler) -> None:
        path = handler.path.partition("?")[0]
        if path == "/chain_2":
            redirect(f"http://{handler.headers['Host']}/chain_3", 307)(handler)
        else:
            answers.get(path, status(404))(handler)

    return route
