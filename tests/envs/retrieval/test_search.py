import copy
import json
import pickle

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
    best_last = SearchTool(documents=DOCUMENTS, top_k=3, order="best_last")
    assert call(best_last, "oak lamp").text.splitlines() == ["oak chair: 3", "brass lamp: 0", "oak lamp: 2"]
    assert call(SearchTool(documents=[{"contents": "an oak"}]), "oak") == ToolResult("an oak")
    assert call(tool, "zebra") == ToolResult("Nothing found.")
    assert call(tool, "!?") == ToolResult("Nothing found.")
    assert call(tool, "") == ToolResult("Nothing found.")
    assert call(tool, "oak \x00 lamp").text.startswith("oak lamp")
    assert call(tool, "oak " * 501).text == "The query has 2003 characters; at most 2000 are allowed."


@pytest.mark.parametrize("kind", ["json", "sqlite"])
def test_the_cache_is_asked_first(tmp_path, kind):
    entries = {"oak lamp": "Page 1: from the cache", "a  b ": "Page 1: spaces", "c d": "Page 1: normal"}
    cache = tmp_path / f"cache.{kind}"
    if kind == "json":
        cache.write_text(json.dumps(entries))
    else:
        ResultCache(cache).put_all(entries.items())
    tool = SearchTool(documents=DOCUMENTS, cache=str(cache), top_k=1)
    assert call(tool, " oak lamp\n") == ToolResult("Page 1: from the cache")
    assert call(tool, "c   d").text == "Page 1: normal"
    assert call(tool, "oak lamps") == ToolResult("oak lamp: 2")
    offline = SearchTool(backend="offline", cache=str(cache))
    assert call(offline, "oak lamp") == ToolResult("Page 1: from the cache")
    assert call(offline, "oak lamps") == ToolResult("The search cache has no result for this query.", ToolStatus.ERROR)
    assert len(ResultCache(cache) if kind == "sqlite" else json.loads(cache.read_text())) == 3


@pytest.mark.parametrize("copied", [lambda tool: pickle.loads(pickle.dumps(tool)), copy.deepcopy])
def test_a_copy_reads_its_cache_anew(tmp_path, copied):
    cache = tmp_path / "cache.json"
    cache.write_text('{"a": "1"}')
    tool = SearchTool(backend="offline", cache=str(cache))
    assert call(tool, "a").text == "1"
    cache.write_text('{"a": "another"}')
    assert copied(tool) == tool
    assert (call(tool, "a").text, call(copied(tool), "a").text) == ("1", "another")


def test_the_files_that_are_read_and_not_written_have_marks(tmp_path):
    documents, cache, grown = tmp_path / "documents.jsonl", tmp_path / "cache.json", tmp_path / "cache.sqlite"
    documents.write_text('{"text": "Vienna"}\n')
    cache.write_text("{}")
    ResultCache(grown).put("a", "1")
    tool = SearchTool(documents=str(documents), cache=str(cache))
    before = tool.inputs()
    assert before.keys() == {str(documents), str(cache)}
    cache.write_text('{"a": "1"}')
    after = tool.inputs()
    assert [name for name in before if before[name] != after[name]] == [str(cache)]
    assert SearchTool(documents=DOCUMENTS, cache=str(grown)).inputs() == {}
    build_folder([str(documents)], str(tmp_path / "index"))
    assert SearchTool(index=str(tmp_path / "index")).inputs().keys() == {str(tmp_path / "index")}


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
    cache, imported = tmp_path / "cache.json", tmp_path / "cache.sqlite"
    for written in forms:
        documents = [*rest, {"title": "", "text": f"{written}, I say"}]
        (tmp_path / "rows.json").write_text(json.dumps(documents))
        build_folder([tmp_path / "rows.json"], tmp_path / "index", overwrite=True)
        cache.write_text(json.dumps({written: "found", other: "another"}))
        ResultCache(imported).import_json(cache)
        tools = [SearchTool(documents=documents, top_k=1), SearchTool(index=str(tmp_path / "index"), top_k=1)]
        known = [SearchTool(backend="offline", cache=str(path)) for path in (cache, imported)]
        for asked in forms:
            # The model reads the passage as its file has it.
            texts = [call(tool, asked).text.removeprefix("Page 1: ") for tool in tools]
            assert texts == [f"{written}, I say"] * 2
            assert [call(tool, asked).text for tool in known] == ["found"] * 2
        assert [call(tool, other).text for tool in known] == ["another"] * 2
