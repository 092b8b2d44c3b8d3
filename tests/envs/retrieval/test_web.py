import asyncio
import json
import pickle

import pytest

from rllib_arpo.core.tree import ToolStatus
from rllib_arpo.envs.errors import TransientToolError
from rllib_arpo.envs.support.cache import ResultCache
from rllib_arpo.envs.tools.search import SearchTool
from rllib_arpo.envs.tools.tool import ToolResult, run_tool
from tests.helpers.web_server import Reply, reply, serving
from tests.helpers.web_server import json_service as serve

KEY = "secret-key-of-a-user"
SEARXNG = {
    "query": "eiffel tower",
    "number_of_results": 0,
    "results": [
        {"url": "http://a", "title": "Eiffel Tower", "content": "A tower\nin  Paris.", "engine": "x", "score": 1.0},
        {"url": "http://b", "title": "Paris", "content": "", "engine": "x"},
        {"url": "http://c", "title": "", "content": "Built in 1889.", "engine": "y"},
        {"url": "http://d", "title": "Fourth", "content": "Too many."},
    ],
    "answers": [],
    "infoboxes": [],
    "suggestions": [],
    "unresponsive_engines": [],
}
BRAVE = {
    "type": "search",
    "query": {"original": "eiffel tower", "more_results_available": True},
    "web": {
        "type": "search",
        "results": [
            {"title": "Eiffel Tower", "url": "http://a", "description": "A tower in Paris.", "extra_snippets": ["x"]},
            {"title": "Paris", "url": "http://b"},
            {"url": "http://c", "title": "", "description": "Built in 1889."},
        ],
    },
}
SERPER = {
    "searchParameters": {"q": "eiffel tower", "type": "search", "num": 3},
    "answerBox": {"title": "Eiffel Tower", "answer": "A tower in Paris."},
    "organic": [
        {"title": "Paris", "link": "http://b", "position": 1},
        {"title": "", "link": "http://c", "snippet": "Built in 1889.", "position": 2},
        {"title": "Fourth", "link": "http://d", "snippet": "Too many.", "position": 3},
    ],
    "credits": 1,
}
TAVILY = {
    "query": "eiffel tower",
    "answer": None,
    "images": [],
    "results": [
        {"title": "Eiffel Tower", "url": "http://a", "content": "A tower in Paris.", "score": 0.9, "raw_content": None},
        {"title": "Paris", "url": "http://b", "content": "", "score": 0.8},
        {"title": "", "url": "http://c", "content": "Built in 1889.", "score": 0.7},
    ],
    "response_time": 0.4,
}
REPLIES = {"searxng": SEARXNG, "brave": BRAVE, "serper": SERPER, "tavily": TAVILY}
FOUND = "Page 1: Eiffel Tower: A tower in Paris.\nPage 2: Paris\nPage 3: Built in 1889."
EMPTY = {
    "searxng": {**SEARXNG, "results": []},
    "brave": {"type": "search", "query": {"original": "x"}},
    "serper": {"searchParameters": {}, "organic": []},
    "tavily": {**TAVILY, "results": []},
}
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


def ask(tool: SearchTool, query: str = "eiffel tower") -> ToolResult:
    """One call without repetitions; raises what the tool raises."""
    return asyncio.run(tool(query))


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


@ALL
@pytest.mark.parametrize("cached", [False, True])
def test_a_snippet_that_is_cut_in_an_emoji_is_shown_and_kept(backend, cached, tmp_path):
    cache = str(tmp_path / "cache.sqlite") if cached else None
    reply = json.dumps(REPLIES[backend]).replace("A tower", "\\ud83d tower").encode()
    with serve(lambda request: Reply(reply)) as engine:
        tool = SearchTool(backend=backend, base_url=engine.url, cache=cache)
        shown = FOUND.replace("A tower", "\ufffd tower")
        assert [call(tool), call(tool)] == [ToolResult(shown)] * 2
        assert len(engine.requests) == (1 if cached else 2)


@ALL
def test_nothing_found_is_no_failure_and_is_not_kept(backend, tmp_path):
    cache = str(tmp_path / "cache.sqlite")
    with serve(lambda request: Reply(EMPTY[backend])) as engine:
        tool = SearchTool(backend=backend, base_url=engine.url, cache=cache)
        assert call(tool) == ToolResult("Nothing found.")
        assert call(tool) == ToolResult("Nothing found.")
        assert len(engine.requests) == 2


@ALL
@pytest.mark.parametrize("status", [429, 503])
def test_a_busy_engine_is_asked_again(backend, status, monkeypatch):
    monkeypatch.setattr("rllib_arpo.envs.tools.tool.RETRY_WAIT_S", 0.01)
    with serve(lambda r: Reply({"detail": {"error": "slow down"}}, status)) as engine:
        with pytest.raises(TransientToolError, match=rf"is busy or out of order \(status {status}\)"):
            ask(SearchTool(backend=backend, base_url=engine.url))
        engine.answer = lambda r: Reply({}, status) if len(engine.requests) < 4 else Reply(REPLIES[backend])
        assert call(SearchTool(backend=backend, base_url=engine.url, max_attempts=3)).text.startswith("Page 1")
        assert len(engine.requests) == 4


@ALL
def test_a_lost_connection_is_transient(backend):
    with serve(lambda request: None) as engine, pytest.raises(TransientToolError, match="cannot be reached"):
        ask(SearchTool(backend=backend, base_url=engine.url))
    with pytest.raises(TransientToolError, match="cannot be reached"):
        ask(SearchTool(backend=backend, base_url=engine.url))


@ALL
def test_a_slow_engine_is_transient(backend):
    with (
        serve(lambda request: Reply({}, delay_s=0.6)) as engine,
        pytest.raises(TransientToolError, match=r"did not answer within 0\.1 s|cannot be reached \(TimeoutError\)"),
    ):
        ask(SearchTool(backend=backend, base_url=engine.url, request_timeout_s=0.1))


@WITH_KEY
@pytest.mark.parametrize("status", [401, 403])
def test_a_refused_key_is_an_error_that_names_the_variable(backend, status):
    with serve(lambda request: Reply({"detail": {"error": f"bad {KEY}"}, "message": KEY}, status)) as engine:
        result = call(SearchTool(backend=backend, base_url=engine.url))
        assert len(engine.requests) == 1
    assert result.status == ToolStatus.ERROR
    assert f"refused the key in {backend.upper()}_API_KEY (status {status})" in result.text
    assert KEY not in result.text


def test_searxng_without_json_says_what_to_do():
    with serve(lambda request: Reply(b"<html>Forbidden</html>", 403)) as engine:
        result = call(SearchTool(backend="searxng", base_url=engine.url))
    expected = "SearxNG refused the request (status 403): is json among search.formats of its settings.yml?"
    assert result == ToolResult(expected, ToolStatus.ERROR)


@ALL
@pytest.mark.parametrize("status", [302, 422])
def test_another_refusal_shows_what_the_engine_says_but_no_key(backend, status):
    with serve(lambda request: Reply({"detail": {"error": f"wrong country {KEY}"}}, status)) as engine:
        result = call(SearchTool(backend=backend, base_url=engine.url))
        assert len(engine.requests) == 1
    assert result.status == ToolStatus.ERROR
    assert f"refused the request (status {status})" in result.text
    assert "wrong country" in result.text
    assert KEY not in result.text or backend == "searxng"


def test_the_character_set_of_a_refusal_is_not_believed():
    kind = {"Content-Type": "text/html; charset=utf-16"}
    with serving("127.0.0.1", lambda handler: reply(handler, "wrong country", 422, kind)) as server:
        result = call(SearchTool(backend="searxng", base_url=f"http://127.0.0.1:{server.port}"))
    assert result == ToolResult("SearxNG refused the request (status 422): wrong country", ToolStatus.ERROR)


@ALL
@pytest.mark.parametrize("body", [b"<html>", b"[]", b"null", b"{}", b'{"results": 3}', b"\xff\xfe", b"[" * 100_000])
def test_a_malformed_reply_is_an_error_and_not_kept(backend, body, tmp_path):
    with serve(lambda request: Reply(body)) as engine:
        tool = SearchTool(backend=backend, base_url=engine.url, cache=str(tmp_path / "cache.sqlite"))
        result = call(tool)
        assert len(engine.requests) == 1
        engine.answer = lambda request: Reply(REPLIES[backend])
        assert call(tool) == ToolResult(FOUND)
    assert result.status == ToolStatus.ERROR
    assert "sent a reply that is not" in result.text


@ALL
@pytest.mark.parametrize(
    "entry", ["text", None, {"title": 3}, {"title": "a", "content": [], "description": [], "snippet": 1}]
)
def test_a_malformed_page_is_an_error(backend, entry):
    key = {"brave": "web", "serper": "organic"}.get(backend, "results")
    reply = {**REPLIES[backend], key: {"results": [entry]} if backend == "brave" else [entry]}
    with serve(lambda request: Reply(reply)) as engine:
        result = call(SearchTool(backend=backend, base_url=engine.url))
    assert (result.status, result.text.endswith("sent a reply that is not understood.")) == (ToolStatus.ERROR, True)


def test_searxng_whose_engines_are_all_out_is_transient():
    reply = {**EMPTY["searxng"], "unresponsive_engines": [["google", "timeout"]]}
    with serve(lambda request: Reply(reply)) as engine, pytest.raises(TransientToolError, match="No engine"):
        ask(SearchTool(backend="searxng", base_url=engine.url))


@WITH_KEY
def test_a_missing_key_is_named_at_once(backend, monkeypatch):
    variable = f"{backend.upper()}_API_KEY"
    tool = SearchTool(backend=backend, base_url="http://127.0.0.1:9")
    monkeypatch.delenv(variable)
    with pytest.raises(ValueError, match=f"needs a key in the environment variable {variable}"):
        SearchTool(backend=backend)
    assert call(tool).text.endswith(f"needs a key in the environment variable {variable}.")


@WITH_KEY
def test_a_key_is_not_kept(backend):
    tool = SearchTool(backend=backend)
    assert KEY not in repr(tool)
    assert KEY.encode() not in pickle.dumps(tool)
    assert pickle.loads(pickle.dumps(tool)) == tool


@pytest.mark.parametrize(("options", "message"), [
    ({"backend": "searxng"}, "SearxNG needs `base_url`"),
    ({"backend": "searxng", "base_url": "localhost:80"}, "must begin with http"),
    ({"backend": "brave", "backend_options": {"api_key": "x"}},
     "'api_key' is not an option.* keys come from environment"),
    ({"backend": "brave", "backend_options": {"count": 3}}, "'count' is not an option.* sets it itself"),
    ({"backend": "googel"}, "Unknown search back-end 'googel'"),
    ({"backend": "brave", "documents": [{"text": "a"}]}, "'documents' is an option of local search back-ends"),
    ({"documents": [{"text": "a"}], "base_url": "http://a"}, "'base_url' is an option of web search back-ends"),
    ({"backend": "brave", "cache": "a.json"},
     "import it into a sqlite file with rllib-arpo import-cache CACHE.sqlite a.json"),
    ({"backend": "brave", "cache": "/no folder/a.sqlite"}, "no such folder"),
])  # fmt: skip
def test_wrong_options_are_named(options, message):
    with pytest.raises(ValueError, match=message):
        SearchTool(**options)


@ALL
def test_queries_that_no_engine_takes_are_not_sent(backend):
    with serve(lambda request: Reply(REPLIES[backend])) as engine:
        tool = SearchTool(backend=backend, base_url=engine.url)
        assert call(tool, "  ") == ToolResult("The query is empty.", ToolStatus.ERROR)
        assert call(tool, "\ud800").text.startswith("search cannot read its argument: ")
        assert call(tool, "x" * 2001).text == "The query has 2001 characters; at most 2000 are allowed."
        assert engine.requests == []


def test_a_query_is_asked_once_however_many_want_it(tmp_path):
    cache = str(tmp_path / "cache.sqlite")
    with serve(lambda request: Reply(SEARXNG, delay_s=0.1)) as engine:
        tools = [SearchTool(backend="searxng", base_url=engine.url, cache=cache) for _ in range(2)]

        async def all_at_once(query):
            return {
                (await flight).text
                for flight in [asyncio.create_task(run_tool(tools[i % 2], query)) for i in range(64)]
            }

        assert len(asyncio.run(all_at_once("one"))) == 1
        assert len(asyncio.run(all_at_once(" one "))) == 1
        assert len(asyncio.run(all_at_once("two"))) == 1
        assert [request.params["q"] for request in engine.requests] == ["one", "two"]


def test_what_the_web_answered_is_known_offline(tmp_path):
    cache = tmp_path / "cache.sqlite"
    ResultCache(cache).put("imported", "Page 1: imported")
    with serve(lambda request: Reply(SEARXNG)) as engine:
        tool = SearchTool(backend="searxng", base_url=engine.url, cache=str(cache))
        assert [call(tool).text, call(tool, "imported").text] == [FOUND, "Page 1: imported"]
    offline = SearchTool(backend="offline", cache=str(cache), top_k=5)
    assert call(offline).text == FOUND
    assert len(ResultCache(cache)) == 2
