"""Pages served on loopback, good and bad ones: the right text, or the right error within the deadline."""

import asyncio
import gzip
import itertools
import resource
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from http.server import BaseHTTPRequestHandler
from typing import Any

import pytest

from rllib_arpo.core.tree import ToolStatus
from rllib_arpo.envs.tools.browse import BrowseTool
from rllib_arpo.envs.tools.tool import ToolResult, run_tool
from rllib_arpo.envs.web import fetch, readable
from rllib_arpo.envs.web.reader import MAX_TEXT_CHARS, text_of
from tests.helpers.web_server import Route, reply, serving

MAX_PAGE_BYTES = 1 << 20
#: Seconds of a call, on a busy machine.
PATIENT_S = 60.0
ERROR = ToolStatus.ERROR

PARAGRAPHS = (
    "The brass lamp costs 12 crowns, the oak chair 30. Both are made by hand in a small town by the sea. "
    "Whoever has one of them wants the other, too, and waits for it for a year or two.",
    "Every spring the makers bring their work to the market, where people from the whole country come to buy it. "
    "There are lamps of brass, copper and glass, and chairs of oak, pine and elm.",
)
ARTICLE = (
    "<html><head><title>Brass &amp; oak</title><style>p {color: red}</style></head>"
    "<body><nav><a href='/a'>Home</a> <a href='/b'>About</a></nav>"
    f"<article><h1>Lamps</h1><p>{PARAGRAPHS[0]}</p><p>{PARAGRAPHS[1]}</p><script>hidden()</script></article>"
    "</body></html>"
)
ARTICLE_TEXT = "\n".join(("Lamps", *PARAGRAPHS))
ARTICLE_READ = f"Title: Brass & oak\nURL: HOST/plain\n\n{ARTICLE_TEXT}"


def page(body: bytes | str, content_type: str = "text/html; charset=utf-8", **headers: str):
    """Answers with `body`; underscores in header names are hyphens."""
    headers = {"Content-Type": content_type, **{k.replace("_", "-"): v for k, v in headers.items()}}
    return lambda handler: reply(handler, body, headers=headers)


def status(code: int):
    return lambda handler: reply(handler, "<p>an error page</p>", code)


def redirect(location: str, code: int = 302):
    return lambda handler: reply(handler, "", code, {"Location": location})


def absolute_redirect(path: str, code: int):
    return lambda handler: redirect(f"http://{handler.headers['Host']}{path}", code)(handler)


def stream(pieces: Callable[[], Iterator[bytes]], delay_s: float = 0.0, head: str = "Content-Type: text/html"):
    """Writes `pieces` until the client hangs up or they end, then closes the connection."""

    def answer(handler: BaseHTTPRequestHandler) -> None:
        handler.wfile.write(f"HTTP/1.0 200 OK\r\n{head}\r\n\r\n".encode() if head else b"")
        for piece in pieces():
            handler.wfile.write(piece)
            handler.wfile.flush()
            time.sleep(delay_s)

    return answer


def endless_gzip() -> Iterator[bytes]:
    deflate = zlib.compressobj(9, wbits=31)
    zeros = bytes(1 << 20)
    return (deflate.compress(zeros) for _ in itertools.count())


def cookie(handler: BaseHTTPRequestHandler) -> None:
    if handler.headers.get("Cookie") == "seen=1":
        reply(handler, "<p>welcome back</p>")
    else:
        reply(handler, "", 302, {"Location": "/cookie", "Set-Cookie": "seen=1"})


def crumbs() -> Iterator[bytes]:
    """Chunks of one byte."""
    return iter([b"1\r\nx\r\n" * 30_000 + b"0\r\n\r\n"])


def read(pages: Mapping[str, Route], **options: Any) -> dict[str, ToolResult]:
    """Opens all pages at once; what the model reads of each, with HOST for the server."""
    defaults = {"timeout_s": PATIENT_S, "max_attempts": 1, "ports": None}
    tool = BrowseTool(**{**defaults, "allow_private": ["127.0.0.1"], **options})

    async def every(host: str) -> list[ToolResult]:
        return await asyncio.gather(*(run_tool(tool, f"{host}/{name}") for name in pages))

    def route(handler: BaseHTTPRequestHandler) -> None:
        pages.get(handler.path[1:], status(404))(handler)

    with serving("127.0.0.1", route) as server:
        host = f"http://127.0.0.1:{server.port}"
        found = asyncio.run(every(host))
    return {name: ToolResult(r.text.replace(host, "HOST"), r.status) for name, r in zip(pages, found, strict=True)}


GZIPPED = gzip.compress(ARTICLE.encode())

#: Page -> what the server does, and what the model must read: of a text, below the page's address.
GOOD: dict[str, tuple[Route, str]] = {
    "plain": (page(ARTICLE), ARTICLE_READ),
    "text": (page("a < b\nsecond line\n", "text/plain"), "a < b\nsecond line"),
    "json": (page('{"a": 1}', "application/json"), '{"a": 1}'),
    "no_type": (stream(lambda: iter([b"<html><body>untyped page</body></html>"]), head="X: y"), "untyped page"),
    "empty": (page(""), "(The page has no text.)"),
    "cyrillic": (page("<meta charset=windows-1251><p>лампа".encode("cp1251"), "text/html"), "лампа"),
    # Redirects.
    "chain_1": (redirect("/chain_2", 301), ARTICLE_READ),
    "chain_2": (absolute_redirect("/chain_3", 307), ARTICLE_READ),
    "chain_3": (redirect("plain", 308), ARTICLE_READ),
    "cookie": (cookie, "welcome back"),
    # Compression.
    "gzip": (page(GZIPPED, Content_Encoding="gzip"), ARTICLE_READ.replace("/plain", "/gzip")),
    "gzip_garbage_after": (page(gzip.compress(b"<p>one") + b"\0\0", Content_Encoding="gzip"), "one"),
    "as_large_as_allowed": (page(b"x" * MAX_PAGE_BYTES, "text/plain"), "x" * MAX_TEXT_CHARS),
}

TOO_LARGE = "The page is larger than 1048576 bytes."
ENDLESS_GZIP = stream(endless_gzip, head="Content-Encoding: gzip")
CRUMBS = stream(crumbs, head="Transfer-Encoding: chunked")
BAD: dict[str, tuple[Route, str]] = {
    "loop": (redirect("/loop"), "HOST/loop: more than 5 redirects."),
    "redirect_to_ftp": (
        redirect("ftp://127.0.0.1/"),
        "ftp://127.0.0.1/: only addresses that begin with http:// or https:// can be opened.",
    ),
    "nowhere": (lambda handler: reply(handler, "", 302), "HOST/nowhere: the server answered 302 Found."),
    "missing": (status(404), "HOST/missing: the server answered 404 Not Found."),
    "busy": (status(429), "HOST/busy: the server answered 429 Too Many Requests."),
    # Compression.
    "gzip_bomb": (page(gzip.compress(bytes(64 << 20)), Content_Encoding="gzip"), TOO_LARGE),
    "endless_gzip": (ENDLESS_GZIP, TOO_LARGE),
    "brotli": (page(b"x", Content_Encoding="br"), "The page is encoded as 'br', which was not asked for."),
    "gzip_cut_off": (page(GZIPPED[:-20], Content_Encoding="gzip"), "The compressed page is cut off."),
    "no_gzip": (
        page(ARTICLE, Content_Encoding="gzip"),
        "The compressed page is broken (Error -3 while decompressing data: incorrect header check).",
    ),
    # Streams.
    "claims_to_be_huge": (stream(lambda: iter([b"x"]), head="Content-Length: 99999999999"), TOO_LARGE),
    "endless": (stream(lambda: itertools.repeat(b"<p>x" * 4096)), TOO_LARGE),
    "hangs_up": (
        stream(lambda: iter([]), head=""),
        "HOST/hangs_up: the connection failed (Server disconnected without sending a response.).",
    ),
    "cut_off": (
        stream(lambda: iter([b"x"]), head="Content-Length: 1000"),
        "HOST/cut_off: the connection failed (peer closed connection without sending complete message body (received 1"
        " bytes, expected 1000)).",
    ),
    "crumbs": (CRUMBS, "The page comes in more than 20000 pieces."),
    # Responses that are not pages.
    "pdf": (
        page(b"%PDF-1.7 ...", "application/pdf"),
        "HOST/pdf: the page is a PDF file; only HTML and plain text can be read.",
    ),
    "image": (
        page(b"\x89PNG", "image/png"),
        "HOST/image: the page is of the type 'image/png'; only HTML and plain text can be read.",
    ),
    "binary": (page(b"\x7fELF\0\0", "text/plain"), "HOST/binary: the page is not text, whatever its type says."),
}
SLOW: dict[str, Route] = {
    "drip": stream(lambda: itertools.repeat(b"x"), 0.2),
    "drip_of_headers": stream(lambda: itertools.repeat(b"a: b\r\n"), 0.2, "X: y\r\nX: z"),
    "silence": stream(lambda: iter([b""]), 30.0, ""),
}


def test_every_page_gives_its_text_or_its_error(monkeypatch):
    monkeypatch.setattr(fetch, "MAX_BYTES", MAX_PAGE_BYTES)
    BrowseTool().prepare()
    shown = {name: text if "URL: " in text else f"URL: HOST/{name}\n\n{text}" for name, (_, text) in GOOD.items()}
    assert read({name: answer for name, (answer, _) in GOOD.items()}) == {n: ToolResult(t) for n, t in shown.items()}
    found = read({name: answer for name, (answer, _) in BAD.items()})
    assert found == {name: ToolResult(text, ERROR) for name, (_, text) in BAD.items()}
    late = ToolResult("Time limit of 3 s exceeded.", ToolStatus.TIMEOUT)
    assert read(SLOW, timeout_s=3.0) == dict.fromkeys(SLOW, late)


def test_five_redirects_are_followed_and_not_six():
    hops = {f"hop_{n}": redirect(f"/hop_{n - 1}") for n in range(1, 7)}
    found = read({"hop_0": page("<p>there"), **hops})
    assert found["hop_5"] == ToolResult("URL: HOST/hop_0\n\nthere")
    assert found["hop_6"] == ToolResult("HOST/hop_0: more than 5 redirects.", ERROR)


def test_the_work_of_a_page_is_not_done_in_the_loop_that_waits_for_it():
    read({"crumbs": CRUMBS})
    here, everywhere = time.thread_time(), time.process_time()
    read({"crumbs": CRUMBS})
    assert time.thread_time() - here < 0.2 * (time.process_time() - everywhere)


def test_a_bomb_is_stopped_long_before_it_is_unpacked():
    """256 MB of zeros in 256 kB, each of whose kilobytes would be a megabyte."""
    bomb = page(gzip.compress(bytes(1 << 28)), Content_Encoding="gzip")
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert read({"bomb": bomb})["bomb"].text == "The page is larger than 5242880 bytes."
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 << 10


def test_a_busy_server_is_asked_again_and_a_missing_page_is_not():
    answers = {"busy": [503, 429, 200], "missing": [404, 200]}
    in_turn = {n: lambda handler, left=left: reply(handler, "<p>at last", left.pop(0)) for n, left in answers.items()}
    found = read(in_turn, max_attempts=3)
    assert found["busy"] == ToolResult("URL: HOST/busy\n\nat last")
    assert found["missing"].status == ERROR
    assert answers == {"busy": [], "missing": [200]}


def test_a_page_that_is_slow_to_read_is_given_up_and_the_next_is_read(monkeypatch):
    # libxml2 compares the attributes of an element with each other: 100,000 of them take it half a minute.
    body = f"<p {' '.join(f'a{i}=1' for i in range(100_000))}>hello</p>"
    monkeypatch.setattr(readable, "TIME_LIMIT_S", 3.0)
    readable.readers().start()
    begin = time.perf_counter()
    assert read({"slow": page(body)})["slow"] == ToolResult("The page takes too long to read.", ERROR)
    assert time.perf_counter() - begin < 20
    found = read({"next": page("<title>a  b</title><p>hello")})
    assert found["next"] == ToolResult("Title: a b\nURL: HOST/next\n\nhello")


def test_a_reader_that_dies_is_an_error(monkeypatch):
    monkeypatch.setattr(readable, "MEMORY_MB", 16)
    found = read({"large": page("<p>x" * 100_000)})
    assert found["large"].text.startswith("The page cannot be read (")


@pytest.mark.parametrize(("content", "content_type", "text"), [
    (b"\xef\xbb\xbfK\xc3\xa4se", "text/html; charset=latin-1", "Käse"),
    ("Käse".encode("utf-16-be"), "text/html; charset=utf-16be", "Käse"),
    (b"K\xe4se", "text/html; charset=utf-8", "K\ufffdse"),
    (b"K\xe4se", "text/html", "Käse"),
    ("Käse für 3 €".encode("cp1252"), "text/html; charset=ISO-8859-1", "Käse für 3 €"),
    (b"a", "text/html; charset=hex", "a"),
    # Python decodes this one in quadratic time.
    pytest.param(b"a" * 800_000 + b"-" + b"a" * 200_000, "text/html; charset=punycode",
                 "a" * 800_000 + "-" + "a" * 200_000, id="punycode"),
    (b"+ADw-b", "text/html; charset=utf-7", "+ADw-b"),
    (b"\\x41", "text/html; charset=unicode_escape", "\\x41"),
    (b"a-", "<meta charset=idna>", "a-"),
    ("лампа".encode("koi8-r"), "text/html; charset=KOI8-R", "лампа"),
    ("ランプ".encode("shift_jis"), "text/html; charset=Shift_JIS", "ランプ"),
    ("①髙".encode("cp932"), "text/html; charset=Shift_JIS", "①髙"),
    ("①".encode("cp932"), "text/html; charset=x-sjis", "①"),
    ("똠".encode("cp949"), "text/html; charset=euc-kr", "똠"),
    ('<?xml version="1.0" encoding="windows-1251"?>лампа'.encode("cp1251"), "application/xhtml+xml",
     '<?xml version="1.0" encoding="windows-1251"?>лампа'),
    ("<meta charset=utf-16>Käse".encode(), "text/html", "<meta charset=utf-16>Käse"),
    ("Пять\xff".encode().replace(b"\xc3\xbf", b"\xff"), "text/html", "Пять\ufffd"),
    ("λ".encode("iso8859-7"), "text/html; charset=iso-8859-7", "λ"),
    ("中文".encode("gb18030"), 'text/html; charset="gb2312"', "中文"),
])  # fmt: skip
def test_text_of(content, content_type, text):
    assert text_of(content, content_type) == text
