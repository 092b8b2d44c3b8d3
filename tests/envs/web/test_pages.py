"""Pages served on loopback: the right text, or the right error within the deadline."""

import gzip
import resource
import time

import pytest

from rllib_arpo.core.tree import ToolStatus
from rllib_arpo.envs.tools.browse import BrowseTool
from rllib_arpo.envs.tools.tool import ToolResult
from rllib_arpo.envs.web import readable
from rllib_arpo.envs.web.reader import text_of
from tests.envs.web import pages
from tests.helpers import web_server
from tests.helpers.calls import call


def test_every_page_gives_its_text_or_its_error():
    BrowseTool().prepare()
    assert pages.wrong_pages(pages.PAGES, num_concurrent=16) == {}


def test_the_work_of_a_page_is_not_done_in_the_loop_that_waits_for_it():
    case = next(case for case in pages.PAGES if case.name == "crumbs")
    pages.open_pages([case])
    here, everywhere = time.thread_time(), time.process_time()
    assert pages.wrong_pages([case]) == {}
    assert time.thread_time() - here < 0.2 * (time.process_time() - everywhere)


def test_a_bomb_is_stopped_long_before_it_is_unpacked():
    """256 MB of zeros in 256 kB, each of whose kilobytes would be a megabyte."""
    bomb = gzip.compress(bytes(1 << 28))
    case = pages.PageCase("bomb", pages.page(bomb, Content_Encoding="gzip"), "", ToolStatus.ERROR)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    result, _ = pages.open_pages([case], max_page_bytes=8 << 20)["bomb"]
    assert result.text == "The page is larger than 8388608 bytes."
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200 << 10


def test_a_busy_server_is_asked_again_and_a_missing_page_is_not():
    answers = {"/busy": [503, 429, 200], "/missing": [404, 200]}

    def route(handler):
        web_server.reply(handler, "<p>at last", answers[handler.path].pop(0))

    with web_server.serving("127.0.0.1", route) as server:
        tool, host = pages.tool_for(max_attempts=3), f"http://127.0.0.1:{server.port}"
        busy, missing = (call(tool, f"{host}{path}") for path in ("/busy", "/missing"))
    assert busy == ToolResult(f"URL: {host}/busy\n\nat last")
    assert missing.status == ToolStatus.ERROR
    assert answers == {"/busy": [], "/missing": [200]}


def test_a_page_that_is_slow_to_read_is_given_up_and_the_next_is_read(monkeypatch):
    # libxml2 compares the attributes of an element with each other: 100,000 of them take it half a minute.
    body = f"<p {' '.join(f'a{i}=1' for i in range(100_000))}>hello</p>"
    monkeypatch.setattr(readable, "TIME_LIMIT_S", 3.0)
    readable.readers().start()
    slow = pages.PageCase("slow", pages.page(body), "The page takes too long to read.", ToolStatus.ERROR)
    begin = time.perf_counter()
    assert pages.wrong_pages([slow]) == {}
    assert time.perf_counter() - begin < 20
    next_one = pages.PageCase("next", pages.page("<title>a  b</title><p>hello"), "hello", title="a b")
    assert pages.wrong_pages([next_one]) == {}


def test_a_reader_that_dies_is_an_error(monkeypatch):
    monkeypatch.setattr(readable, "MEMORY_MB", 16)
    case = pages.PageCase("large", pages.page("<p>x" * 100_000), "", ToolStatus.ERROR)
    assert pages.open_pages([case])["large"][0].text.startswith("The page cannot be read (")


@pytest.mark.parametrize(("content", "content_type", "text"), [
    (b"\xef\xbb\xbfK\xc3\xa4se", "text/html; charset=latin-1", "Käse"),
    ("Käse".encode("utf-16-be"), "text/html; charset=utf-16be", "Käse"),
    (b"K\xe4se", "text/html; charset=utf-8", "K\ufffdse"),
    (b"K\xe4se", "text/html", "Käse"),
    (b"a", "text/html; charset=hex", "a"),
    # Python decodes this one in quadratic time.
    pytest.param(b"a" * 800_000 + b"-" + b"a" * 200_000, "text/html; charset=punycode",
                 "a" * 800_000 + "-" + "a" * 200_000, id="punycode"),
    (b"+ADw-b", "text/html; charset=utf-7", "+ADw-b"),
    (b"\\x41", "text/html; charset=unicode_escape", "\\x41"),
    (b"a-", "<meta charset=idna>", "a-"),
    ("лампа".encode("koi8-r"), "text/html; charset=KOI8-R", "лампа"),
    ("ランプ".encode("shift_jis"), "text/html; charset=Shift_JIS", "ランプ"),
    ("ランプ".encode("euc_jp"), "text/html; charset=euc-jp", "ランプ"),
    ("등불".encode("euc_kr"), "text/html; charset=euc-kr", "등불"),
    ("燈".encode("big5"), "text/html; charset=big5", "燈"),
    ("λ".encode("iso8859-7"), "text/html; charset=iso-8859-7", "λ"),
    ("中文".encode("gb18030"), 'text/html; charset="gb2312"', "中文"),
])  # fmt: skip
def test_text_of(content, content_type, text):
    assert text_of(content, content_type) == text
