"""Results depend on more than the settings: files that are read; not those that the evaluation itself writes."""

import pytest

from rllib_arpo.commands import run_command
from rllib_arpo.envs.support.cache import ResultCache
from rllib_arpo.evaluation import runner
from tests.helpers.parquet import parquet
from tests.helpers.parquet import row as parquet_row

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
