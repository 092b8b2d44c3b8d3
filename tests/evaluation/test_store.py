"""The store: whole questions, once each, under one set of settings, by one process at a time."""

from __future__ import annotations

import sqlite3

import pytest

from rllib_arpo.evaluation.store import DATABASE, ResultStore, SettingsError, first_difference
from tests.evaluation.samples import question, sample, wrong


def test_what_is_added_comes_back_in_the_order_of_the_numbers(tmp_path):
    first, second = question(0, sample(), wrong(1, f1=0.5)), question(7, wrong(), sample(1, seed=None))
    with ResultStore(tmp_path) as store:
        store.add("arm", second, "abc")
        store.add("arm", first, None)
        store.add("other", first, "abc")
    with ResultStore(tmp_path) as store:
        assert list(store.records("arm")) == [(first, None), (second, "abc")]
        assert store.numbers("arm") == {0, 7}
        assert store.numbers("nothing") == set()


def test_a_question_is_kept_once(tmp_path):
    with ResultStore(tmp_path) as store:
        store.add("arm", question(0, sample()), None)
        with pytest.raises(sqlite3.IntegrityError):
            store.add("arm", question(0, wrong()), None)
        assert [record.samples[0].correct for record, _ in store.records("arm")] == [True]


@pytest.mark.parametrize(
    ("stop_reason", "asked_again"),
    [("broken_tool", True), ("engine_failure", True), ("deadline", False), ("token_limit", False)],
)
def test_what_an_outage_ended_is_asked_again(tmp_path, stop_reason, asked_again):
    broken = question(0, sample(), wrong(1, stop_reason=stop_reason))
    with ResultStore(tmp_path) as store:
        store.add("arm", broken, "old")
        store.add("arm", question(1, sample(), sample(1)), "old")
        assert store.numbers("arm") == ({1} if asked_again else {0, 1})
        assert next(store.records("arm")) == (broken, "old")
        if asked_again:
            store.add("arm", question(0, sample(), sample(1)), "new")
            assert store.numbers("arm") == {0, 1}
            assert [commit for _, commit in store.records("arm")] == ["new", "old"]


def test_other_settings_are_refused_once_there_are_results(tmp_path):
    with ResultStore(tmp_path) as store:
        store.claim({"samples": 1, "seed": 0})
        store.claim({"samples": 2, "seed": 0})
        store.claim({"env_config": {"few_shot": 2}, "data": None}, "arm")
        store.add("arm", question(0, sample()), None)
        store.claim({"samples": 2, "seed": 0})
        with pytest.raises(SettingsError) as error:
            store.claim({"samples": 3, "seed": 0})
        assert str(error.value) == (
            f"{tmp_path} has results with samples=2, not 3: keep the setting, or name another --output."
        )
        with pytest.raises(SettingsError, match="results of arm with env_config/few_shot=2, not null: keep"):
            store.claim({"env_config": {}, "data": None}, "arm")
        store.claim({"env_config": {}}, "another arm")


def test_tuples_and_lists_are_the_same_setting(tmp_path):
    with ResultStore(tmp_path) as store:
        store.claim({"a": (1, 2)})
        store.add("arm", question(0, sample()), None)
        store.claim({"a": [1, 2]})


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ({"a": 1}, {"a": 1}, None),
        ({"a": 1}, {}, ("a", "1", "null")),
        ({"b": 2, "a": {"x": [1]}}, {"b": 3, "a": {"x": [2]}}, ("a/x", "[1]", "[2]")),
        ({"a": {"x": 1}}, {"a": 5}, ("a", '{"x": 1}', "5")),
    ],
)
def test_the_first_difference(old, new, expected):
    assert first_difference(old, new) == expected


def test_one_process_at_a_time(tmp_path):
    with ResultStore(tmp_path), pytest.raises(ValueError, match="another evaluation is writing here"):
        ResultStore(tmp_path)
    ResultStore(tmp_path).close()


def test_another_file_of_that_name_is_refused(tmp_path):
    (tmp_path / DATABASE).write_text("something else, and long enough to be looked at as a database header" * 20)
    with pytest.raises(ValueError, match="not a database of results"):
        ResultStore(tmp_path)


def test_a_file_is_no_folder(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match="file: not a folder that can be written"):
        ResultStore(tmp_path / "file")


def test_notes(tmp_path):
    with ResultStore(tmp_path) as store:
        assert store.note("mlflow") is None
        store.set_note("mlflow", {"runs": {}})
        store.set_note("mlflow", {"runs": {"a": "b"}})
        assert store.note("mlflow") == {"runs": {"a": "b"}}


def test_a_database_of_another_version_is_refused(tmp_path):
    connection = sqlite3.connect(tmp_path / DATABASE)
    connection.execute("CREATE TABLE questions (row TEXT, number INTEGER)")
    connection.close()
    with pytest.raises(ValueError, match=r"not a database of results \(it has version 0, not 2\)"):
        ResultStore(tmp_path)
