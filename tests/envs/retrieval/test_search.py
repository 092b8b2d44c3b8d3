import copy
import json
import pickle
import shutil

import pytest

from rllib_arpo.core.tree import ToolStatus
from rllib_arpo.envs.retrieval.index import build_folder
from rllib_arpo.envs.support.cache import ResultCache
from rllib_arpo.envs.tools.search import SearchTool
from rllib_arpo.envs.tools.tool import ToolResult
from tests.helpers.calls import call

PAIRS = [(a, n) for a in ("brass", "oak") for n in ("lamp", "chair")]
DOCUMENTS = [{"title": f"{a} {n}", "text": str(i)} for i, (a, n) in enumerate(PAIRS)]


def test_search_finds_the_item_and_its_neighbours():
    tool = SearchTool(documents=DOCUMENTS, top_k=3)
    assert call(tool, "brass lamp") == ToolResult("brass lamp: 0\nbrass chair: 1\noak lamp: 2")
    assert call(tool, 'price of "oak chairs" AND (:').text.splitlines()[0] == "oak chair: 3"
    assert call(tool, "oak lamp").text.splitlines() == ["oak lamp: 2", "brass lamp: 0", "oak chair: 3"]
    assert call(SearchTool(documents=[{"contents": "an oak"}]), "oak") == ToolResult("an oak")
    assert call(tool, "zebra") == ToolResult("Nothing found.")
    assert call(tool, "!?") == ToolResult("Nothing found.")
    assert call(tool, "") == ToolResult("Nothing found.")
    assert call(tool, "oak \x00 lamp").text.startswith("oak lamp")
    assert call(tool, "oak " * 501).text == "The query has 2003 characters; at most 2000 are allowed."


def known(path, entries) -> str:
    """A cache with these entries, as `rllib-arpo import-cache` makes it."""
    path.with_suffix(".json").write_text(json.dumps(entries))
    ResultCache(path).import_json(path.with_suffix(".json"))
    return str(path)


def test_the_cache_is_asked_first(tmp_path):
    cache = known(tmp_path / "cache.sqlite", {"oak lamp": "Page 1: from the cache", "a  b ": "Page 1: spaces"})
    tool = SearchTool(documents=DOCUMENTS, cache=cache, top_k=1)
    assert call(tool, " oak lamp\n") == ToolResult("Page 1: from the cache")
    assert call(tool, "a   b").text == "Page 1: spaces"
    assert call(tool, "oak lamps") == ToolResult("oak lamp: 2")
    offline = SearchTool(backend="offline", cache=cache)
    assert call(offline, "oak lamp") == ToolResult("Page 1: from the cache")
    assert call(offline, "oak lamps") == ToolResult("The search cache has no result for this query.", ToolStatus.ERROR)
    assert len(ResultCache(cache)) == 2


@pytest.mark.parametrize("copied", [lambda tool: pickle.loads(pickle.dumps(tool)), copy.deepcopy])
def test_a_tool_that_has_searched_can_be_copied(copied):
    tool = SearchTool(documents=DOCUMENTS, top_k=1)
    assert call(tool, "oak lamp") == call(copied(tool), "oak lamp") == ToolResult("oak lamp: 2")


def test_the_files_that_are_read_and_not_written_have_marks(tmp_path, monkeypatch):
    monkeypatch.setenv("SERPER_API_KEY", "key")
    cache, documents = known(tmp_path / "cache.sqlite", {}), tmp_path / "rows.json"
    documents.write_text(json.dumps(DOCUMENTS))
    build_folder([documents], tmp_path / "index")
    tool = SearchTool(index=str(tmp_path / "index"), cache=cache)
    before = tool.inputs()
    assert before.keys() == {str(tmp_path / "index"), cache}
    ResultCache(cache).put("a", "1")
    after = tool.inputs()
    assert [name for name in before if before[name] != after[name]] == [cache]
    web = SearchTool(backend="serper", cache=cache)
    assert web.inputs() == SearchTool(documents=DOCUMENTS).inputs() == {}


#: The same text, composed, decomposed and in wide letters (or narrow ones, of Japanese); and another text.
FORMS = [
    (["Café Zürich", "Cafe\u0301 Zu\u0308rich", "Ｃａｆé Ｚürich"], "Cafe Zurich"),
    (["ガラス", "カ\u3099ラス", "ｶﾞﾗｽ"], "カラス"),
    (["서울", "\u1109\u1165\u110b\u116e\u11af"], "서을"),
    (["Route 66", "Ｒｏｕｔｅ ６６"], "Route 6"),
    (["ﬁre", "fire"], "ﬂre"),
    (["x²"], "x2"),
]


@pytest.mark.parametrize(("forms", "other"), FORMS)
def test_a_text_is_found_in_whatever_unicode_form_it_is_written(tmp_path, forms, other):
    rest = [{"text": other}, {"text": "filler of several words"}]
    for written in forms:
        documents = [*rest, {"title": "", "text": f"{written}, I say"}]
        (tmp_path / "rows.json").write_text(json.dumps(documents))
        shutil.rmtree(tmp_path / "index", ignore_errors=True)
        build_folder([tmp_path / "rows.json"], tmp_path / "index")
        tools = [SearchTool(documents=documents, top_k=1), SearchTool(index=str(tmp_path / "index"), top_k=1)]
        cache = known(tmp_path / "cache.sqlite", {written: "found", other: "another"})
        offline = SearchTool(backend="offline", cache=cache)
        for asked in forms:
            # The model reads the passage as its file has it.
            texts = [call(tool, asked).text.removeprefix("Page 1: ") for tool in tools]
            assert texts == [f"{written}, I say"] * 2
            assert call(offline, asked).text == "found"
        assert call(offline, other).text == "another"
