"""Results depend on more than the settings: files that are read; not those that the evaluation itself writes."""

import sqlite3

import pytest

from rllib_arpo.commands import run_command
from rllib_arpo.envs.retrieval.index import build_folder
from rllib_arpo.envs.support.cache import ResultCache
from rllib_arpo.evaluation import runner
from tests.helpers.parquet import parquet
from tests.helpers.parquet import row as parquet_row
from tests.helpers.web_server import Reply, json_service

SEARCH, ANSWER = "<search> barn </search>", "<answer> \\boxed{red} </answer>"


@pytest.fixture
def asked(monkeypatch):
    """The numbers that were asked; the first command that asks is interrupted after two questions."""
    numbers, ask = [], runner.ask

    def interrupted_ask(*args, **kwargs):
        answered = ask(*args, **kwargs)
        for _ in range(2):
            record = next(answered)
            numbers.append(record.number)
            yield record
        answered.close()
        monkeypatch.setattr(runner, "ask", recorded_ask)
        raise KeyboardInterrupt

    def recorded_ask(*args, **kwargs):
        for record in ask(*args, **kwargs):
            numbers.append(record.number)
            yield record

    monkeypatch.setattr(runner, "ask", interrupted_ask)
    return numbers


def test_the_cache_of_a_web_search_may_grow(command, asked, tmp_path):
    cache = tmp_path / "search.sqlite"
    results = {"results": [{"title": "Barn", "url": "http://barn", "content": "It is red."}]}
    with json_service(lambda _request: Reply(results)) as engine:
        search = {"backend": "searxng", "base_url": engine.url, "cache": str(cache)}
        line = command(SEARCH, ANSWER, tools={"search": search})
        assert run_command("evaluate", line) == 130
        # As at the end of a process: sqlite's log is merged into the file.
        sqlite3.connect(cache).execute("PRAGMA wal_checkpoint")
        assert b"It is red." in cache.read_bytes()
        assert run_command("evaluate", line) == 0
    assert len(engine.requests) == 1
    assert asked == [0, 1, 2, 3]


def test_an_index_that_was_built_anew_is_refused(command, asked, tmp_path, capsys):
    passages, index = tmp_path / "passages.jsonl", tmp_path / "index"
    passages.write_text('{"title": "Barn", "text": "It is red."}\n')
    build_folder([passages], index)
    line = command(SEARCH, ANSWER, tools={"search": {"index": str(index)}})
    assert run_command("evaluate", line) == 130
    passages.write_text('{"title": "Barn", "text": "It is big."}\n')
    build_folder([passages], index, overwrite=True)
    assert run_command("evaluate", line) == 2
    assert f"with data/{index}=" in capsys.readouterr().err
    assert asked == [0, 1]


def test_other_questions_and_another_read_only_cache_are_refused(command, asked, tmp_path, capsys):
    cache = tmp_path / "known.sqlite"
    ResultCache(cache).put("barn", "Page 1: It is red.")
    before = cache.read_bytes()
    line = command(SEARCH, ANSWER, tools={"search": {"backend": "offline", "cache": str(cache)}})
    assert run_command("evaluate", line) == 130
    ResultCache(cache).put("barn", "Page 1: It is big.")
    assert run_command("evaluate", line) == 2
    assert f"with data/{cache}=" in capsys.readouterr().err
    cache.write_bytes(before)
    parquet(tmp_path / "questions.parquet", [parquet_row(f"Other {i}?", "red") | {"ability": "qa"} for i in range(4)])
    assert run_command("evaluate", line) == 2
    assert f"with data/{tmp_path}/questions.parquet=" in capsys.readouterr().err
    assert asked == [0, 1]
