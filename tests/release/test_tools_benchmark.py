"""The benchmarks of the tools, on tiny samples of the real data."""

import json

import pytest

from release.benchmarks import tools


@pytest.mark.slow
@pytest.mark.skipif(not tools.SEARCH_CACHE.is_file(), reason="The real data is not here.")
def test_a_tiny_run_measures_every_tool(tmp_path):
    file = tmp_path / "tools.json"
    assert tools.main(["--json", str(file), "--tiny"]) == 0
    written = json.loads(file.read_text())
    assert all(written[key] > 0 for benchmark in tools.BENCHMARKS for key in benchmark.targets if key != "math_wrong")
    assert (written["search_recall_5"], written["math_wrong"]) == (1.0, 0)
    assert written["python_warm_p50_ms_detail"]["calls_64"] == 6


def test_made_passages_have_titles_of_their_own():
    pages = ["Jan 1, 2020 · " + " ".join(f"Word{chr(97 + i)}{chr(97 + j)}" for j in range(12)) + "." for i in range(6)]
    passages = tools.make_passages(pages, 20)
    assert len(passages) == 20
    assert passages[0] == {
        "title": "Wordaa Wordab Wordac Wordad Wordae",
        "text": "Wordaf Wordag Wordah Wordai Wordaj Wordak Wordal.",
    }
    titles = [frozenset(passage["title"].lower().split()) for passage in passages]
    assert len(set(titles)) == 20
    assert {len(title) for title in titles[6:]} == {3}
