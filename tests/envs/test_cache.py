import asyncio
import multiprocessing
import pickle
import sqlite3
import threading
import time

import pytest

from rllib_arpo.commands import run_command
from rllib_arpo.envs.errors import DataError
from rllib_arpo.envs.support.cache import ResultCache
from tests.helpers.processes import as_ordinary_user


def entries_of(path) -> dict[str, str]:
    return dict(sqlite3.connect(path).execute("SELECT key, value FROM results"))


def make_and_write(path: str, writer: int, barrier) -> None:
    for attempt in range(4):
        barrier.wait()
        cache = ResultCache(f"{path}{attempt}")
        for i in range(5):
            cache.put(f"{writer}-{i}", f"text {writer} {i}")
            cache.put("shared", str(writer))


@pytest.mark.slow
def test_processes_that_make_and_write_the_file_at_once_lose_and_break_nothing(tmp_path):
    context = multiprocessing.get_context("fork")
    barrier = context.Barrier(8)
    path = str(tmp_path / "cache")
    processes = [context.Process(target=make_and_write, args=(path, number, barrier)) for number in range(8)]
    for process in processes:
        process.start()
    for process in processes:
        process.join()
    assert [process.exitcode for process in processes] == [0] * 8
    for attempt in range(4):
        entries = entries_of(f"{path}{attempt}")
        assert entries.pop("shared") in "01234567"
        assert entries == {f"{w}-{i}": f"text {w} {i}" for w in range(8) for i in range(5)}


def test_the_last_value_of_a_key_counts(tmp_path):
    cache = ResultCache(tmp_path / "cache.sqlite")
    assert cache.get("a") is None
    cache.put("a", "1")
    cache.put("a", "ä\n2")
    assert cache.get("a") == "ä\n2"
    assert len(cache) == 1
    assert pickle.loads(pickle.dumps(cache)).get("a") == "ä\n2"


async def test_callers_that_ask_at_once_get_the_same_text(tmp_path):
    cache, texts = ResultCache(tmp_path / "cache.sqlite"), iter("ab")
    both = asyncio.Barrier(2)

    async def make():
        text = next(texts)
        await both.wait()
        return text

    found = await asyncio.gather(*(cache.get_or_make("key", make) for _ in range(2)))
    assert found == [cache.get("key")] * 2


def use_inherited(cache: ResultCache, number: int) -> None:
    assert cache.get("parent") == "0"
    for i in range(5):
        cache.put(f"child {number} {i}", "text")


def test_forks_of_a_process_that_uses_the_cache_are_safe(tmp_path):
    path = tmp_path / "cache.sqlite"
    cache = ResultCache(path)
    cache.put("parent", "0")
    context, done = multiprocessing.get_context("fork"), threading.Event()

    def write_on() -> None:
        i = 0
        while not done.is_set():
            cache.put(f"parent {i % 50}", "text")
            i += 1

    writer = threading.Thread(target=write_on)
    writer.start()
    children = [context.Process(target=use_inherited, args=(cache, number)) for number in range(4)]
    for child in children:
        child.start()
    for child in children:
        child.join()
    done.set()
    writer.join()
    assert [child.exitcode for child in children] == [0] * 4
    entries = entries_of(path)
    assert all(entries[f"child {n} {i}"] == "text" for n in range(4) for i in range(5))
    assert sqlite3.connect(path).execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def put_for_ever(path: str, done) -> None:
    cache, i = ResultCache(path), 0
    while True:
        cache.put(str(i), "x" * 10_000)
        done.value = i
        i += 1


def test_a_killed_writer_loses_nothing_that_it_has_put(tmp_path):
    path = tmp_path / "cache.sqlite"
    context = multiprocessing.get_context("fork")
    done = context.Value("i", -1, lock=False)
    writer = context.Process(target=put_for_ever, args=(str(path), done))
    writer.start()
    while done.value < 50:
        assert writer.is_alive()
        time.sleep(0.001)
    writer.kill()
    writer.join()
    cache = ResultCache(path)
    assert all(cache.get(str(i)) == "x" * 10_000 for i in range(done.value + 1))
    cache.put("after", "1")
    assert sqlite3.connect(path).execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def read_only_cache(path: str) -> None:
    cache = ResultCache(path)
    assert (cache.read_only, cache.get("a"), len(cache)) == (True, "1", 1)
    with pytest.raises(DataError, match=r"cache\.sqlite: this cache may not be written"):
        cache.put("b", "2")


@pytest.mark.parametrize("folder_mode", [0o555, 0o777])
def test_a_file_that_may_not_be_written_is_read(public_folder, folder_mode):
    path = public_folder / "cache.sqlite"
    cache = ResultCache(path)
    cache.put("a", "1")
    del cache
    path.chmod(0o444)
    public_folder.chmod(folder_mode)
    as_ordinary_user(read_only_cache, str(path))


def test_json_files_are_imported_by_a_command(tmp_path, capsys):
    path = str(tmp_path / "cache.sqlite")

    def imported(*contents: str) -> tuple[int, str]:
        files = [tmp_path / f"{i}.json" for i in range(len(contents))]
        for file, content in zip(files, contents, strict=True):
            file.write_text(content)
        status = run_command("import-cache", [path, *map(str, files)])
        told = capsys.readouterr()
        return status, (told.out + told.err).splitlines()[-1].replace(str(file), "FILE")

    assert imported('{"a": "1", "b": "2"}', '{"b": "3"}') == (0, f"{path}: 2 entries in total.")
    assert imported("[]") == (2, "error: FILE: the file must hold one JSON object of texts.")
    for wrong in ('{"c": 1}', "{", '{"c": "\\ud800"}'):
        status, told = imported(wrong)
        assert status == 2 and told.startswith("error: FILE: ")
    assert entries_of(path) == {"a": "1", "b": "3"}


def test_a_file_that_is_no_cache_is_named(tmp_path):
    (tmp_path / "text").write_text("no database at all, but long enough to be taken for one" * 100)
    with sqlite3.connect(tmp_path / "other") as connection:
        connection.execute("CREATE TABLE results (name TEXT)")
    for name in ("text", "other", "no folder/cache"):
        with pytest.raises(DataError, match=f"{name}: cannot be used as a cache"):
            ResultCache(tmp_path / name)
