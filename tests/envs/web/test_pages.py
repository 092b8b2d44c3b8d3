"""Pages served on loopback: the right text, or the right error within the deadline."""

import asyncio
import gzip
import resource
import time

import pytest

from rllib_arpo.core.tree import ToolStatus
from rllib_arpo.envs.errors import ToolError
from rllib_arpo.envs.tools.browse import BrowseTool
from rllib_arpo.envs.tools.tool import ToolResult, run_tool
from rllib_arpo.envs.web import readers
from rllib_arpo.envs.web.decoding import Decoder, text_of
from rllib_arpo.envs.web.readers import ask_reader
from tests.envs.web import pages
from tests.helpers import web_server


def test_every_page_gives_its_text_or_its_error():
    BrowseTool().prepare()
    seen = pages.open_pages(pages.PAGES, num_concurrent=16)
    assert seen.wrong == {}
    assert len(seen.results) >= 50


def test_every_page_that_scripts_build_gives_its_text_or_its_error(chromium):
    pages.tool_for(render=True).prepare()
    seen = pages.open_pages(pages.RENDERED, num_concurrent=4, **pages.RENDERED_OPTIONS)
    assert seen.wrong == {}


def test_without_rendering_scripts_build_nothing():
    (case,) = [case for case in pages.RENDERED if case.name == "r_built"]
    seen = pages.open_pages([case])
    assert seen.results["r_built"].text.endswith("(The page has no text.)")


def test_a_bomb_is_stopped_long_before_it_is_unpacked():
    """4 GB of zeros in 4 MB, each of whose kilobytes would be a megabyte."""
    bomb = gzip.compress(bytes(1 << 28)) * 16
    case = pages.PageCase("bomb", pages.page(bomb, Content_Encoding="gzip"), "", ToolStatus.ERROR)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    seen = pages.open_pages([case], max_page_bytes=8 << 20)
    assert seen.results["bomb"].text == "The page is larger than 8388608 bytes."
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 << 10


def test_a_busy_server_is_asked_again_and_a_missing_page_is_not():
    answers = {"/busy": [503, 429, 200], "/missing": [404, 200]}

    def route(handler):
        web_server.reply(handler, "<p>at last", answers[handler.path].pop(0))

    with web_server.serving("127.0.0.1", route) as server:
        tool, host = pages.tool_for(max_attempts=3, timeout_s=30.0), f"http://127.0.0.1:{server.port}"
        busy, missing = (asyncio.run(run_tool(tool, f"{host}{path}", None)) for path in ("/busy", "/missing"))
    assert busy == ToolResult(f"URL: {host}/busy\n\nat last")
    assert missing.status == ToolStatus.ERROR
    assert answers == {"/busy": [], "/missing": [200]}


def test_a_page_that_is_slow_to_parse_is_given_up_and_the_next_is_read(monkeypatch):
    """libxml2 compares the attributes of an element with each other: 100,000 of them take it half a minute."""
    monkeypatch.setattr(readers, "TIME_LIMIT_S", 1.0)
    slow = f"<p {' '.join(f'a{i}=1' for i in range(100_000))}>hello</p>"

    async def read(html: str):
        return await ask_reader("read_page", html=html, url="http://example.com/", links=False)

    begin = time.perf_counter()
    with pytest.raises(ToolError, match="takes too long to read"):
        asyncio.run(read(slow))
    assert time.perf_counter() - begin < 10
    assert asyncio.run(read("<title>a  b</title><p>hello")) == {"title": "a b", "text": "hello"}


@pytest.mark.parametrize(
    ("content", "content_type", "text"),
    [
        (b"\xef\xbb\xbfK\xc3\xa4se", "text/html; charset=latin-1", "Käse"),
        ("Käse".encode("utf-16-be"), "text/html; charset=utf-16be", "Käse"),
        (b"K\xe4se", "text/html; charset=utf-8", "K\ufffdse"),
        (b"K\xe4se", "text/html", "Käse"),
        (b"a\x80b", "text/html; charset=us-ascii", "a€b"),
        (b"a", "text/html; charset=hex", "a"),
        ("中文".encode("gb18030"), 'text/html; charset="gb2312"', "中文"),
    ],
)
def test_text_of(content, content_type, text):
    assert text_of(content, content_type) == text


def test_decoder_counts_what_it_is_fed():
    decoder = Decoder("", 3)
    decoder.feed(b"abc")
    assert decoder.finish() == b"abc"
    with pytest.raises(ToolError, match="larger than 3 bytes"):
        decoder.feed(b"d")
