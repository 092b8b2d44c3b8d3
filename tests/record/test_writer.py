"""The writer's thread: nothing is lost in silence, and a disk that fails does not end a run."""

import logging
import threading

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rllib_arpo.record import recorder
from rllib_arpo.record.recorder import RecordWriter


def table(number: int = 0) -> pa.Table:
    return pa.table({"number": [number]})


@pytest.fixture
def warnings(caplog):
    caplog.set_level(logging.WARNING, "rllib_arpo")
    return lambda: caplog.messages


def test_files_are_written_in_a_thread_and_whole(tmp_path, warnings):
    threads = []

    def make() -> pa.Table:
        threads.append(threading.current_thread().name)
        return table(3)

    made = RecordWriter(tmp_path / "trees")
    made.submit("a.parquet", 1, make)
    made.close()
    made.close()
    assert [path.name for path in (tmp_path / "trees").iterdir()] == ["a.parquet"]
    assert pq.read_table(tmp_path / "trees" / "a.parquet").to_pylist() == [{"number": 3}]
    assert threads == ["record_0"]
    assert warnings() == []


def test_a_disk_that_fails_is_one_warning_and_the_sum_at_the_end(tmp_path, warnings):
    folder = tmp_path / "trees"
    folder.write_text("not a folder")
    made = RecordWriter(folder)
    made.submit("a.parquet", 3, table)
    made.submit("b.parquet", 4, table)
    made.close()
    assert len(warnings()) == 2
    assert warnings()[0].startswith(f"Cannot write {folder}/a.parquet (")
    assert warnings()[0].endswith("): training goes on without the record.")
    assert warnings()[1] == f"The record in {folder} lacks 7 questions."


def test_a_disk_that_comes_back_gets_the_next_files(tmp_path, monkeypatch, warnings):
    written = recorder.pq.write_table

    def fails_once(made, path, **options):
        if path.name.startswith("a"):
            path.write_text("the half of it")
            raise OSError(28, "No space left on device")
        written(made, path, **options)

    monkeypatch.setattr(recorder.pq, "write_table", fails_once)
    made = RecordWriter(tmp_path)
    for name in ("a.parquet", "b.parquet"):
        made.submit(name, 1, table)
    made.close()
    assert [path.name for path in tmp_path.iterdir()] == ["b.parquet"]
    assert warnings()[1:] == [f"The record in {tmp_path} lacks 1 questions."]


def test_a_disk_that_is_too_slow_loses_files_aloud(tmp_path, monkeypatch, warnings):
    monkeypatch.setattr(recorder, "MAX_PENDING", 1)
    goes_on = threading.Event()
    made = RecordWriter(tmp_path)
    made.submit("a.parquet", 1, lambda: goes_on.wait(10) and table())
    made.submit("b.parquet", 2, table)
    goes_on.set()
    made.close()
    assert [path.name for path in tmp_path.iterdir()] == ["a.parquet"]
    assert warnings() == [
        f"The record leaves out {tmp_path}/b.parquet: 1 files wait for the disk.",
        f"The record in {tmp_path} lacks 2 questions.",
    ]


def test_a_bug_in_the_thread_is_raised(tmp_path):
    made = RecordWriter(tmp_path)
    made.submit("a.parquet", 1, lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        made.close()
    assert list(tmp_path.iterdir()) == []
