import asyncio
import pickle
import re

import pytest

from rllib_arpo.core.tree import ToolStatus
from rllib_arpo.envs.errors import TransientToolError
from rllib_arpo.envs.support.cache import ResultCache
from rllib_arpo.envs.tools.search import SearchTool
from rllib_arpo.envs.tools.tool import ToolResult, run_tool
from tests.helpers.web_server import Reply
from tests.helpers.web_server import json_service as serve

KEY = "secret-key-of-a-user"
PAGES = [("Eiffel Tower", "A tower\nin  Paris."), ("Paris", ""), ("", "Built in 1889."), ("Fourth", "Too many.")]
FOUND = "Page 1: Eiffel Tower: A tower in Paris.\nPage 2: Paris\nPage 3: Built in 1889."


def replies(pages: list) -> dict[str, dict]:
    """Back-end -> its answer with these pages, in the layout of its documentation."""

    def as_dicts(text: str) -> list:
        return [{"title": page[0], text: page[1], "score": 1.0} if isinstance(page, tuple) else page for page in pages]

    return {
        "searxng": {"query": "x", "results": as_dicts("content"), "answers": [], "unresponsive_engines": []},
        "brave": {"type": "search", "web": {"type": "search", "results": as_dicts("description")}},
        "serper": {"searchParameters": {"q": "x"}, "organic": as_dicts("snippet"), "credits": 1},
        "tavily": {"query": "x", "answer": None, "results": as_dicts("content"), "response_time": 0.4},
    }


REPLIES, EMPTY = replies(PAGES), replies([])
ALL = pytest.mark.parametrize("backend", list(REPLIES))
WITH_KEY = pytest.mark.parametrize("backend", ["brave", "serper", "tavily"])


@pytest.fixture(autouse=True)
def keys(monkeypatch):
    for name in ("BRAVE", "SERPER", "TAVILY"):
        monkeypatch.setenv(f"{name}_API_KEY", KEY)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


def call(tool: SearchTool, query: str = "eiffel tower") -> ToolResult:
    return asyncio.run(run_tool(tool, query))


def test_requests_are_those_of_the_documentation():
    sent = {}
    for backend, found in REPLIES.items():
        with serve(lambda request, found=found: Reply(found)) as engine:
            tool = SearchTool(backend=backend, base_url=engine.url + "/", backend_options={"country": "austria"})
            assert call(tool, "a & b") == ToolResult(FOUND)
            (sent[backend],) = engine.requests
    country = {"country": "austria"}
    assert {name: (request.method, request.path) for name, request in sent.items()} == {
        "searxng": ("GET", "/search"),
        "brave": ("GET", "/web/search"),
        "serper": ("POST", "/search"),
        "tavily": ("POST", "/search"),
    }
    assert sent["searxng"].params == {"q": "a & b", "format": "json", **country}
    assert sent["brave"].params == {"q": "a & b", "count": "3", "text_decorations": "false", **country}
    assert sent["brave"].headers["x-subscription-token"] == KEY
    assert (sent["serper"].body, sent["serper"].headers["x-api-key"]) == ({"q": "a & b", "num": 3, **country}, KEY)
    assert sent["tavily"].body == {"query": "a & b", "max_results": 3, **country}
    assert sent["tavily"].headers["authorization"] == f"Bearer {KEY}"


def serper_with_an_answer() -> dict:
    box = {"title": "Eiffel Tower", "answer": "A tower in Paris."}
    return {**replies(PAGES[1:])["serper"], "answerBox": box}


def test_the_answer_box_of_serper_comes_first():
    with serve(lambda request: Reply(serper_with_an_answer())) as engine:
        assert call(SearchTool(backend="serper", base_url=engine.url)) == ToolResult(FOUND)


@ALL
@pytest.mark.parametrize(
    ("reply", "shown", "kept"),
    [
        (replies(PAGES), FOUND, True),
        # A snippet that is cut in an emoji.
        (replies([("A", "\ud83d tower")]), "Page 1: A: \ufffd tower", True),
        (EMPTY, "Nothing found.", False),
    ],
)
def test_what_is_found_is_kept(backend, reply, shown, kept, tmp_path):
    with serve(lambda request: Reply(reply[backend])) as engine:
        tools = {name: SearchTool(backend=backend, base_url=engine.url, cache=name) for name in (None, f"{tmp_path}/c")}
        for cache, tool in tools.items():
            engine.requests.clear()
            assert [call(tool), call(tool)] == [ToolResult(shown)] * 2
            assert len(engine.requests) == (1 if cache and kept else 2)


@ALL
@pytest.mark.parametrize(
    ("reply", "sentence"),
    [
        (Reply({"detail": {"error": "slow down"}}, 429), "is busy or out of order (status 429)"),
        (Reply({}, 503), "is busy or out of order (status 503)"),
        (None, "cannot be reached"),
    ],
)
def test_a_busy_engine_is_asked_again(backend, reply, sentence, monkeypatch):
    monkeypatch.setattr("rllib_arpo.envs.tools.tool.RETRY_WAIT_S", 0.01)
    with serve(lambda request: reply) as engine:
        tool = SearchTool(backend=backend, base_url=engine.url, max_attempts=3)
        with pytest.raises(TransientToolError, match=re.escape(sentence)):
            asyncio.run(tool("eiffel tower"))
        engine.requests.clear()
        engine.answer = lambda request: reply if len(engine.requests) < 3 else Reply(REPLIES[backend])
        assert call(tool) == ToolResult(FOUND)
        assert len(engine.requests) == 3


@ALL
def test_a_silent_engine_is_transient(backend):
    silent = r"did not answer within 0\.1 s|cannot be reached \(TimeoutError\)"
    with serve(lambda request: Reply({}, delay_s=0.6)) as engine, pytest.raises(TransientToolError, match=silent):
        asyncio.run(SearchTool(backend=backend, base_url=engine.url, request_timeout_s=0.1)("eiffel tower"))


def test_searxng_whose_engines_are_all_out_is_transient():
    reply = {**EMPTY["searxng"], "unresponsive_engines": [["google", "timeout"]]}
    with serve(lambda request: Reply(reply)) as engine, pytest.raises(TransientToolError, match="No engine"):
        asyncio.run(SearchTool(backend="searxng", base_url=engine.url)("eiffel tower"))


JSON_IS_OFF = "SearxNG refused the request (status 403): is json among search.formats of its settings.yml?"
NO_KEY = "Brave refused the key in BRAVE_API_KEY (status 401)."
USED_UP = "Tavily refused the key in TAVILY_API_KEY (status 432), or its plan is used up."


@pytest.mark.parametrize(
    ("backend", "status", "sentence"),
    [
        *(("searxng", 403, JSON_IS_OFF), ("brave", 401, NO_KEY), ("tavily", 432, USED_UP)),
        ("serper", 422, 'Serper refused the request (status 422): {"detail": {"error": "wrong country ***"}}'),
        ("brave", 302, 'Brave refused the request (status 302): {"detail": {"error": "wrong country ***"}}'),
    ],
)
def test_a_refusal_shows_what_the_engine_says_but_no_key(backend, status, sentence):
    refusal = Reply({"detail": {"error": f"wrong country {KEY}"}}, status)
    with serve(lambda request: refusal) as engine:
        result = call(SearchTool(backend=backend, base_url=engine.url))
    assert (len(engine.requests), result) == (1, ToolResult(sentence, ToolStatus.ERROR))


def test_the_character_set_of_a_refusal_is_not_believed():
    kind = {"Content-Type": "text/html; charset=utf-16"}
    with serve(lambda request: Reply(b"wrong country", 422, headers=kind)) as engine:
        result = call(SearchTool(backend="searxng", base_url=engine.url))
    assert result == ToolResult("SearxNG refused the request (status 422): wrong country", ToolStatus.ERROR)


ODD_PAGES = ["text", None, {"title": 3}, {"title": "a", "content": [], "description": [], "snippet": 1}]


@ALL
@pytest.mark.parametrize(
    "body",
    [
        *(dict.fromkeys(REPLIES, body) for body in (b"<html>", b"[]", b"{}", b'{"results": 3}', b"\xff\xfe")),
        dict.fromkeys(REPLIES, b"[" * 100_000),
        *(replies([page]) for page in ODD_PAGES),
    ],
)
def test_a_malformed_reply_is_an_error_and_not_kept(backend, body, tmp_path):
    with serve(lambda request: Reply(body[backend])) as engine:
        tool = SearchTool(backend=backend, base_url=engine.url, cache=str(tmp_path / "cache.sqlite"))
        result = call(tool)
        assert len(engine.requests) == 1
        engine.answer = lambda request: Reply(REPLIES[backend])
        assert call(tool) == ToolResult(FOUND)
    assert result.status == ToolStatus.ERROR
    assert "sent a reply that is not" in result.text


@WITH_KEY
def test_a_key_is_read_at_each_call_and_not_kept(backend, monkeypatch):
    tool = SearchTool(backend=backend, base_url="http://127.0.0.1:9")
    assert KEY not in repr(tool)
    assert KEY.encode() not in pickle.dumps(tool)
    assert pickle.loads(pickle.dumps(tool)) == tool
    monkeypatch.delenv(f"{backend.upper()}_API_KEY")
    assert call(tool).text.endswith(f"needs a key in the environment variable {backend.upper()}_API_KEY.")


def test_queries_that_no_engine_takes_are_not_sent():
    tool = SearchTool(backend="searxng", base_url="http://127.0.0.1:9")
    assert call(tool, "  ") == ToolResult("The query is empty.", ToolStatus.ERROR)
    assert call(tool, "\ud800").text.startswith("search cannot read its argument: ")
    assert call(tool, "x" * 2001).text == "The query has 2001 characters; at most 2000 are allowed."


def test_a_query_is_asked_once_however_many_want_it(tmp_path):
    cache = str(tmp_path / "cache.sqlite")
    with serve(lambda request: Reply(REPLIES["searxng"], delay_s=0.1)) as engine:
        tools = [SearchTool(backend="searxng", base_url=engine.url, cache=cache) for _ in range(2)]

        async def all_at_once(query):
            return await asyncio.gather(*(run_tool(tools[i % 2], query) for i in range(64)))

        for query in ("one", " one ", "two"):
            assert asyncio.run(all_at_once(query)) == [ToolResult(FOUND)] * 64
        assert [request.params["q"] for request in engine.requests] == ["one", "two"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"top_k": 5}, "top_k=3, and the search tool has 5"),
        ({"backend_options": {"language": "de"}}, r"backend_options={}, and the search tool has {'language': 'de'}"),
        ({"backend": "brave"}, "backend='searxng', and the search tool has 'brave'"),
    ],
)
def test_a_cache_of_other_settings_is_refused(tmp_path, options, message):
    cache = tmp_path / "cache.sqlite"
    ResultCache(cache).put("imported", "Page 1: imported")
    early = SearchTool(backend="searxng", base_url="http://127.0.0.1:9", cache=str(cache), top_k=7)
    with serve(lambda request: Reply(REPLIES["searxng"])) as engine:
        tool = SearchTool(backend="searxng", base_url=engine.url, cache=str(cache))
        assert [call(tool).text, call(tool, "imported").text] == [FOUND, "Page 1: imported"]
        with pytest.raises(ValueError) as error:
            SearchTool(**{"backend": "searxng", "base_url": engine.url, "cache": str(cache), **options})
    assert str(error.value) == f"{cache}: this cache holds results of {message}: give it a cache of its own."
    with pytest.raises(ValueError, match="top_k=3, and the search tool has 7"):
        early.prepare()
    offline = SearchTool(backend="offline", cache=str(cache), top_k=5)
    assert call(offline).text == FOUND
    assert len(ResultCache(cache)) == 2
