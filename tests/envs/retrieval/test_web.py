import asyncio
import pickle
import re

import pytest

from rllib_arpo.core.tree import ToolStatus
from rllib_arpo.envs.errors import DataError, TransientToolError
from rllib_arpo.envs.support.cache import ResultCache
from rllib_arpo.envs.tools.search import SearchTool
from rllib_arpo.envs.tools.tool import ToolResult, run_tool
from tests.helpers.web_server import Reply
from tests.helpers.web_server import json_service as serve

KEY = "secret-key-of-a-user"
PAGES = [("Eiffel Tower", "A tower\nin  Paris."), ("Paris", ""), ("", "Built in 1889."), ("Fourth", "Too many.")]
FOUND = "Page 1: Eiffel Tower: A tower in Paris.\nPage 2: Paris\nPage 3: Built in 1889."


def found(*pages, **more) -> dict:
    """Serper's reply with these pages, in the layout of its documentation."""
    organic = [{"title": page[0], "snippet": page[1], "position": 1} for page in pages]
    return {"searchParameters": {"q": "x"}, "organic": organic, "credits": 1, **more}


ANSWER_BOX = found(*PAGES[1:], answerBox={"title": "Eiffel Tower", "answer": "A tower in Paris."})


@pytest.fixture(autouse=True)
def keys(monkeypatch):
    monkeypatch.setenv("SERPER_API_KEY", KEY)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)


def web(url: str = "http://127.0.0.1:9", **options) -> SearchTool:
    return SearchTool(backend="serper", base_url=url, **options)


def call(tool: SearchTool, query: str = "eiffel tower") -> ToolResult:
    return asyncio.run(run_tool(tool, query))


def test_requests_are_those_of_the_documentation():
    with serve(lambda request: Reply(found(*PAGES))) as engine:
        assert call(web(engine.url + "/", backend_options={"gl": "at"}), "a & b") == ToolResult(FOUND)
    (sent,) = engine.requests
    assert (sent.method, sent.path, sent.headers["x-api-key"]) == ("POST", "/search", KEY)
    assert sent.body == {"q": "a & b", "num": 3, "gl": "at"}


@pytest.mark.parametrize(
    ("reply", "shown", "kept"),
    [
        (found(*PAGES), FOUND, True),
        (ANSWER_BOX, FOUND, True),
        # A snippet that is cut in an emoji.
        (found(("A", "\ud83d tower")), "Page 1: A: \ufffd tower", True),
        (found(), "Nothing found.", False),
    ],
)
def test_what_is_found_is_kept(reply, shown, kept, tmp_path):
    with serve(lambda request: Reply(reply)) as engine:
        for cache in (None, str(tmp_path / "cache.sqlite")):
            tool = web(engine.url, cache=cache)
            engine.requests.clear()
            assert [call(tool), call(tool)] == [ToolResult(shown)] * 2
            assert len(engine.requests) == (1 if cache and kept else 2)


@pytest.mark.parametrize(
    ("reply", "sentence"),
    [
        (Reply({"detail": {"error": "slow down"}}, 429), "is busy or out of order (status 429)"),
        (Reply({}, 503), "is busy or out of order (status 503)"),
        (None, "cannot be reached"),
    ],
)
def test_a_busy_engine_is_asked_again(reply, sentence, monkeypatch):
    monkeypatch.setattr("rllib_arpo.envs.tools.tool.RETRY_WAIT_S", 0.01)
    with serve(lambda request: reply) as engine:
        tool = web(engine.url, max_attempts=3)
        with pytest.raises(TransientToolError, match=re.escape(sentence)):
            asyncio.run(tool("eiffel tower"))
        engine.requests.clear()
        engine.answer = lambda request: reply if len(engine.requests) < 3 else Reply(found(*PAGES))
        assert call(tool) == ToolResult(FOUND)
        assert len(engine.requests) == 3


def test_a_silent_engine_is_transient(monkeypatch):
    monkeypatch.setattr("rllib_arpo.envs.retrieval.sources.REQUEST_TIMEOUT_S", 0.1)
    silent = r"did not answer within 0\.1 s|cannot be reached \(TimeoutError\)"
    with serve(lambda request: Reply({}, delay_s=0.6)) as engine, pytest.raises(TransientToolError, match=silent):
        asyncio.run(web(engine.url)("eiffel tower"))


@pytest.mark.parametrize(
    ("reply", "sentence"),
    [
        (Reply({}, 401), "Serper refused the key in SERPER_API_KEY (status 401)."),
        (
            Reply({"detail": {"error": f"wrong country {KEY}"}}, 422),
            'Serper refused the request (status 422): {"detail": {"error": "wrong country ***"}}',
        ),
        # Its character set is not believed.
        (
            Reply(b"wrong country", 422, headers={"Content-Type": "text/html; charset=utf-16"}),
            "Serper refused the request (status 422): wrong country",
        ),
    ],
)
def test_a_refusal_shows_what_the_engine_says_but_no_key(reply, sentence):
    with serve(lambda request: reply) as engine:
        assert call(web(engine.url)) == ToolResult(sentence, ToolStatus.ERROR)
    assert len(engine.requests) == 1


ODD_PAGES = ["text", None, {"title": 3}, {"title": "a", "snippet": 1}]


@pytest.mark.parametrize(
    "body",
    [
        *(b"<html>", b"[]", b"{}", b'{"organic": 3}', b"\xff\xfe", b"[" * 100_000),
        *({"organic": [page]} for page in ODD_PAGES),
        found(*PAGES, answerBox=[1]),
    ],
)
def test_a_malformed_reply_is_an_error_and_not_kept(body, tmp_path):
    with serve(lambda request: Reply(body)) as engine:
        tool = web(engine.url, cache=str(tmp_path / "cache.sqlite"))
        result = call(tool)
        assert len(engine.requests) == 1
        engine.answer = lambda request: Reply(found(*PAGES))
        assert call(tool) == ToolResult(FOUND)
    assert result.status == ToolStatus.ERROR
    assert "sent a reply that is not" in result.text


def test_a_key_is_read_at_each_call_and_not_kept(monkeypatch):
    tool = web()
    assert KEY not in repr(tool)
    assert KEY.encode() not in pickle.dumps(tool)
    assert pickle.loads(pickle.dumps(tool)) == tool
    monkeypatch.delenv("SERPER_API_KEY")
    assert call(tool).text.endswith("needs a key in the environment variable SERPER_API_KEY.")


def test_queries_that_no_engine_takes_are_not_sent():
    assert call(web(), "  ") == ToolResult("The query is empty.", ToolStatus.ERROR)
    assert call(web(), "\ud800").text.startswith("search cannot read its argument: ")
    assert call(web(), "x" * 2001).text == "The query has 2001 characters; at most 2000 are allowed."


def test_a_query_is_asked_once_however_many_want_it(tmp_path):
    cache = str(tmp_path / "cache.sqlite")
    with serve(lambda request: Reply(found(*PAGES), delay_s=0.1)) as engine:
        tools = [web(engine.url, cache=cache) for _ in range(2)]

        async def all_at_once(query):
            return await asyncio.gather(*(run_tool(tools[i % 2], query) for i in range(64)))

        for query in ("one", " one ", "two"):
            assert asyncio.run(all_at_once(query)) == [ToolResult(FOUND)] * 64
        assert [request.body["q"] for request in engine.requests] == ["one", "two"]


def test_a_cache_of_other_settings_is_refused(tmp_path):
    cache = tmp_path / "cache.sqlite"
    ResultCache(cache).put("imported", "Page 1: imported")
    early = web(cache=str(cache), top_k=7)
    with serve(lambda request: Reply(found(*PAGES))) as engine:
        tool = web(engine.url, cache=str(cache))
        assert [call(tool).text, call(tool, "imported").text] == [FOUND, "Page 1: imported"]
    for options in ({"top_k": 5}, {"backend_options": {"gl": "de"}}):
        with pytest.raises(ValueError, match=f"{cache}: this cache holds results of another `top_k`"):
            web(cache=str(cache), **options)
    with pytest.raises(ValueError, match="give the search tool a cache of its own"):
        early.prepare()
    assert call(SearchTool(backend="offline", cache=str(cache), top_k=5)).text == FOUND
    assert len(ResultCache(cache)) == 2


def test_a_web_search_must_be_able_to_write_its_cache(tmp_path):
    with pytest.raises(DataError, match=r"no such folder \(for the cache of the search tool\)"):
        web(cache=str(tmp_path / "no folder" / "a.sqlite"))
