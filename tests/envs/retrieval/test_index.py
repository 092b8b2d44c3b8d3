import asyncio
import json
import multiprocessing
import os
import shutil
import signal
import time
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from rllib_arpo.commands import run_command
from rllib_arpo.envs.errors import DataError
from rllib_arpo.envs.retrieval import documents
from rllib_arpo.envs.retrieval.documents import read_documents
from rllib_arpo.envs.retrieval.index import build_folder, build_in_memory, open_folder, read_info
from rllib_arpo.envs.tools.search import SearchTool
from rllib_arpo.envs.tools.tool import ToolResult, run_tool
from tests.helpers.processes import as_ordinary_user

CITIES = [("Vienna", "Capital of Austria, on the Danube."), ("Rome", "Capital of Italy."), ("Linz", "On the Danube.")]


@pytest.fixture
def cities(tmp_path):
    file = tmp_path / "cities.jsonl"
    file.write_text("".join(json.dumps({"title": title, "text": text}) + "\n" for title, text in CITIES))
    return file


@pytest.fixture
def folder(tmp_path, cities):
    build_folder([cities], tmp_path / "index")
    return tmp_path / "index"


def test_every_kind_of_file_is_read(tmp_path):
    jsonl, rows = (tmp_path / name for name in ("a.jsonl", "d.json"))
    parquet = tmp_path / "e.parquet"
    jsonl.write_text('{"title": "T", "text": "one", "contents": "no"}\n\n{"contents": "two", "title": null}\n')
    rows.write_text('[{"text": "one", "body": "a"}, {"text": "two", "title": "T", "body": "b"}]')
    pyarrow.parquet.write_table(pyarrow.table({"title": ["T", None], "text": ["one", "two"], "x": [1, 2]}), parquet)
    assert list(read_documents(jsonl)) == [("T", "one"), ("", "two")]
    assert list(read_documents(rows)) == [("", "one"), ("T", "two")]
    assert list(read_documents(parquet)) == [("T", "one"), ("", "two")]


def test_one_command_builds_an_index(tmp_path, cities, capsys):
    more, output = tmp_path / "more.jsonl", tmp_path / "deep" / "index"
    more.write_text('{"text": "Graz is in Styria."}\n{"text": "Bregenz is on a lake."}')
    assert run_command("index", ["--output", str(output), str(cities), str(more)]) == 0
    done = capsys.readouterr()
    assert done.out == f"{output}: 5 passages.\n"
    assert read_info(output) == {"version": 4, "num_passages": 5, "files": [str(cities), str(more)]}
    index = open_folder(output)
    assert index.num_documents == 5
    assert index.search("styria", 3) == [(3, "Graz is in Styria.")]


def test_a_folder_finds_what_an_index_in_memory_finds(folder):
    in_memory = build_in_memory(CITIES)
    for query in ("Danube", "capital", "capital of Italy", "the DANUBE's capitals", "linz", "none", "", "()\"' AND"):
        assert open_folder(folder).search(query, 2) == in_memory.search(query, 2)
    assert in_memory.search("capital danube", 3) == [
        (0, "Vienna: Capital of Austria, on the Danube."),
        (1, "Rome: Capital of Italy."),
        (2, "Linz: On the Danube."),
    ]


@pytest.mark.parametrize(
    ("passages", "query", "rows"),
    [
        (["東京タワーは東京にある", "大阪城は大阪にある"], "大阪城", [1]),
        # 46 bytes of UTF-8.
        (["мало", "достопримечательностями"], "достопримечательностями", [1]),
        (["same words"] * 20, "words", [0, 1, 2, 3, 4]),
        # Short passages that have a word often come first.
        (["cat a", "cat and dog and cat", "a dog that is longer than the cat", "dog", "cat dog cat dog cat"], "cats",
         [4, 1, 0, 2]),
    ],
)  # fmt: skip
def test_the_order_of_what_is_found(passages, query, rows):
    index = build_in_memory([("", text) for text in passages])
    assert [row for row, _ in index.search(query, 5)] == rows


def test_a_failed_build_leaves_nothing(tmp_path):
    bad = tmp_path / "bad.jsonl"
    bad.write_text("{")
    with pytest.raises(DataError, match="not JSON"):
        build_folder([bad], tmp_path / "index")
    assert [path.name for path in tmp_path.iterdir()] == ["bad.jsonl"]


def test_a_folder_that_is_there_is_never_touched(tmp_path, cities):
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("years of work")
    with pytest.raises(DataError, match="mine: exists; remove it, or choose another folder"):
        build_folder([cities], mine)
    assert (mine / "thesis.txt").read_text() == "years of work"
    with pytest.raises(DataError, match="mine: no finished search index"):
        SearchTool(index=str(mine))


def build_for_ever(output: str, building) -> None:
    def endless(path):
        for row in range(10**9):
            yield row, {"text": f"passage {row}"}
            if row == 20_000:
                building.set()
                time.sleep(600)

    # Ray Tune's handler, which tests before this one may have left, only notes the first SIGINT.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    documents._json_rows = endless
    build_folder([Path(output).with_name("cities.jsonl")], output)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_an_interrupted_build_leaves_no_index(tmp_path, cities, number):
    output = tmp_path / "index"
    context = multiprocessing.get_context("fork")
    building = context.Event()
    build = context.Process(target=build_for_ever, args=(str(output), building))
    build.start()
    assert building.wait(100)
    os.kill(build.pid, number)
    build.join()
    assert not output.exists()
    assert len(list(tmp_path.glob("index.*"))) == (number == signal.SIGKILL)
    with pytest.raises(DataError, match="no finished search index"):
        open_folder(output)
    assert build_folder([cities], output) == 3
    assert open_folder(output).num_documents == 3


def test_an_index_that_lacks_a_file_is_broken(folder):
    next((folder / "tantivy").glob("*.idx")).unlink()
    with pytest.raises(DataError, match=r"the index is broken .*; build it anew"):
        open_folder(folder)
    (folder / "index.json").write_text('{"version": 0}')
    with pytest.raises(DataError, match="a search index of version 0, not 4"):
        open_folder(folder)


def search_read_only(folder: str) -> None:
    with pytest.raises(PermissionError):
        os.mkdir(os.path.join(folder, "new"))
    assert open_folder(folder).search("rome", 1) == [(1, "Rome: Capital of Italy.")]


def test_other_users_read_an_index(folder, public_folder):
    shutil.move(folder, public_folder / "index")
    as_ordinary_user(search_read_only, str(public_folder / "index"))


async def test_64_searches_at_once_find_what_one_after_the_other_finds(tmp_path, folder):
    tool = SearchTool(index=str(folder), top_k=1)
    expected = [ToolResult(f"Page 1: {title}: {text}") for title, text in CITIES]
    found = await asyncio.gather(*(run_tool(tool, CITIES[i % 3][0]) for i in range(64)))
    assert found == [expected[i % 3] for i in range(64)]
