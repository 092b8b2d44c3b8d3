"""The layouts of data sets that people name, which the task "parquet" recognises; Unicode and line ends of files."""

import json
import logging
import unicodedata
from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from rllib_arpo.envs.errors import DataError
from rllib_arpo.envs.tasks import TASKS, DatasetTask
from rllib_arpo.envs.tasks.dataset import layout_of
from rllib_arpo.envs.tasks.rows import open_file
from rllib_arpo.envs.tasks.specs import SPECS
from tests.helpers.datasets import LAYOUTS, WRITERS, dapo, json_lines
from tests.helpers.parquet import parquet


def task_of(path, **keys) -> DatasetTask:
    return DatasetTask(task="parquet", path=str(path), split="test", **keys)


@pytest.mark.parametrize("ending", WRITERS)
@pytest.mark.parametrize("name", LAYOUTS)
def test_rows_as_they_are_published_are_read_by_their_task_and_without_one(tmp_path, name, ending):
    layout = LAYOUTS[name]
    path = WRITERS[ending](tmp_path / f"rows.{ending}", layout.rows)
    tasks = [DatasetTask(task=layout.task, path=path, split="test", **layout.keys)]
    if layout.recognised:
        tasks.append(task_of(path, **layout.keys))
        assert layout_of(open_file(path)) == layout.task
    for task in tasks:
        questions = [task.question(n) for n in range(task.num_questions)]
        assert [question.messages for question in questions] == [(("user", asked),) for asked in layout.questions]
        assert [question.answers for question in questions] == layout.answers
        assert {question.ability for question in questions} == {layout.ability}
        assert [question.source for question in questions] == [f"{path}, row {n}" for n in range(len(questions))]
    own = layout.rows[0].get(SPECS[layout.task].row_id)
    assert tasks[0].question(0).question_id == "rows/0" + (f" ({own})" if own is not None else "")


def test_every_layout_has_rows_here():
    assert {one.task for one in LAYOUTS.values()} == set(SPECS)
    recognised = {one.task for one in LAYOUTS.values() if one.recognised}
    assert recognised == {name for name, one in SPECS.items() if one.marks is not None}
    assert set(TASKS) == {*SPECS, "arithmetic", "seeds", "trails"}


def test_parquet_of_pandas_and_columns_without_a_value(tmp_path):
    """Pandas has arrays in its cells, and writes columns that are None everywhere, categories and large strings."""
    pandas = pytest.importorskip("pandas")
    for number, published in enumerate(one for one in LAYOUTS.values() if one.recognised):
        given = WRITERS["parquet"](tmp_path / f"given{number}.parquet", published.rows)
        frame = pandas.read_parquet(given).assign(empty=None)
        if "data_source" in frame:
            frame["data_source"] = frame["data_source"].astype("category")
        frame.to_parquet(tmp_path / f"{number}.parquet")
        task = task_of(tmp_path / f"{number}.parquet", **published.keys)
        assert [task.question(n).answers for n in range(task.num_questions)] == published.answers


def test_a_data_set_that_was_saved_with_arrays(tmp_path):
    datasets = pytest.importorskip("datasets")
    published = LAYOUTS["Search-R1's NQ"]
    saved = datasets.Dataset.from_list(published.rows).with_format("numpy")
    saved.save_to_disk(tmp_path / "saved")
    assert type(datasets.load_from_disk(tmp_path / "saved")[0]["golden_answers"]).__name__ == "ndarray"
    task = DatasetTask(task="parquet", hub_id=str(tmp_path / "saved"), split="test")
    assert [task.question(n).answers for n in range(3)] == published.answers


def test_only_the_columns_of_the_layout_are_kept_in_memory(tmp_path, monkeypatch):
    rows = [{**row, "generations": ["long"] * 9} for row in LAYOUTS["OpenR1-Math-220k"].rows]
    path, read = parquet(tmp_path / "a.parquet", rows), []
    whole = pq.ParquetFile.read
    monkeypatch.setattr(
        pq.ParquetFile, "read", lambda file, columns: read.append(columns) or whole(file, columns=columns)
    )
    task_of(path).question(0)
    assert read == [["answer"], ["problem", "answer", "solution"]]


def test_the_first_rows_of_several_files_choose_each_its_layout(tmp_path):
    paths = [
        json_lines(tmp_path / "math.jsonl", LAYOUTS["MATH"].rows),
        parquet(tmp_path / "nq.parquet", LAYOUTS["Search-R1's NQ"].rows),
    ]
    task = DatasetTask(task="parquet", path=paths, split="test")
    assert [task.question(n).ability for n in range(4)] == ["math"] + ["qa"] * 3
    assert (task.tools, task_of(paths[0]).tools) == (("python", "search"), ("python",))


def test_an_instruction_of_another_format_is_not_shown(tmp_path):
    """Only the words that are known are left out; a prompt that is nothing else stays."""
    texts = ["Is this: x?", "Let's think step by step. Why?", "  Solve the following math problem: 1 + 1", ""]
    path = json_lines(tmp_path / "a.jsonl", [dapo(text) for text in texts])
    task = task_of(path)
    assert [task.question(n).messages[0][1] for n in range(4)] == [text.strip() for text in texts[:3]] + [
        dapo("")["prompt"][0]["content"]
    ]


def test_problems_that_are_to_be_proved_are_skipped(tmp_path, caplog):
    (first,) = LAYOUTS["NuminaMath-1.5"].rows
    path = parquet(tmp_path / "a.parquet", [first, {**first, "answer": "proof"}, {**first, "answer": "notfound"}])
    with caplog.at_level(logging.WARNING):
        assert task_of(path).num_questions == 1
    assert caplog.messages == [
        f"{path}: 1 of 3 rows are skipped: they have no answer but a proof.",
        f"{path}: 1 of 3 rows are skipped: they have no answer.",
    ]


def test_texts_of_the_parts_of_a_message(tmp_path):
    parts = [{"type": "text", "text": "Who?"}, {"type": "text", "text": " When?"}]
    developer = {"role": "developer", "content": [{"type": "text", "text": "Be brief."}]}
    said = {"role": "assistant", "content": [{"type": "text", "text": "It was \\boxed{Ada}."}]}
    rows = [{"messages": [developer, {"role": "user", "content": parts}, said], "ability": "qa"}]
    task = task_of(json_lines(tmp_path / "a.jsonl", rows), keep_system_prompt=True)
    question = task.question(0)
    assert question.messages == (("system", "Be brief."), ("user", "Who? When?"))
    assert question.answers == ("Ada",)


@pytest.mark.parametrize("begin", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\n\xef\xbb\xbf", b"\r\n\r\n"])
@pytest.mark.parametrize("form", ["NFC", "NFD"])
def test_byte_order_marks_line_ends_and_unicode_forms(tmp_path, begin, end, form):
    rows = [{"question": f"Qui a écrit « Émile » ? {n}", "answer": "Zoë 한국"} for n in range(2)]
    lines = [unicodedata.normalize(form, json.dumps(row, ensure_ascii=False)).encode() for row in rows]
    (tmp_path / "a.jsonl").write_bytes(begin + end.join(lines) + b"\r\n  \n" + end.replace(b"\xef\xbb\xbf", b""))
    task = task_of(tmp_path / "a.jsonl", ability="qa")
    assert task.num_questions == 2
    for number in range(2):
        question = task.question(number)
        assert unicodedata.normalize("NFC", question.messages[0][1]) == rows[number]["question"]
        assert [unicodedata.normalize("NFC", answer) for answer in question.answers] == ["Zoë 한국"]


def split(path, fraction=0.5, **keys) -> tuple[list[str], list[str]]:
    """The texts that the training asks, and those of the test."""
    tasks = [DatasetTask(path=str(path), train_fraction=fraction, split=name, **keys) for name in ("train", "test")]
    train, test = ([task.question(n).messages[-1][1] for n in range(task.num_questions)] for task in tasks)
    return train, test


def test_rows_with_one_question_are_on_one_side(tmp_path, caplog):
    rows = [{"question": f"What is {n} + {n}?", "answer": str(2 * n)} for n in range(20)] * 10
    path = json_lines(tmp_path / "a.jsonl", rows)
    with caplog.at_level(logging.WARNING):
        train, test = split(path, 0.9, task="math")
        assert (len(train), len(test), set(train) & set(test)) == (180, 20, set())
        assert Counter(Counter(train + test).values()) == {10: 20}
        assert split(path, 0.9, task="math", seed=7)[1] == test
    # Counted once, for all tasks of the process.
    assert caplog.messages == [f"{path}: 180 of 200 rows repeat the question of an earlier row."]


def test_spelling_does_not_tell_questions_apart(tmp_path):
    spellings = [
        "Où est l'été ?",
        "où est  l'été ?\r\n",
        unicodedata.normalize("NFD", "Où est l'été ?"),
        "Ｏù est l'été\u00a0?",
    ]
    others = [f"Où est l'hiver {n} ?" for n in range(8)]
    path = json_lines(tmp_path / "a.jsonl", [{"question": q, "answer": "ici"} for q in [*spellings, *others]])
    for fraction in (0.2, 0.4, 0.6, 0.8):
        train, test = split(path, fraction, task="qa")
        assert len(set(spellings) & set(train)) in (0, 4) and len(train) + len(test) == 12


def test_questions_of_several_files_and_layouts_are_on_one_side(tmp_path):
    """DAPO's instruction does not tell a question from the same one elsewhere."""
    texts = [f"What is {n} + {n}?" for n in range(10)]
    paths = [
        json_lines(tmp_path / "a.jsonl", [{"problem": text, "answer": "1"} for text in texts]),
        parquet(tmp_path / "b.parquet", [dapo(text) for text in texts]),
    ]
    tasks = [DatasetTask(task="parquet", path=paths, train_fraction=0.5, split=name) for name in ("train", "test")]
    train, test = ([task.question(n).messages[0][1] for n in range(task.num_questions)] for task in tasks)
    assert Counter(Counter(train).values()) == Counter(Counter(test).values()) == {2: 5}
    assert not set(train) & set(test)


def test_rows_of_worlds_are_told_apart_by_all_their_columns(tmp_path):
    rows = [{"prompt": "Open the safe.", "code": n % 10} for n in range(20)]
    path = json_lines(tmp_path / "a.jsonl", rows)
    sides = [DatasetTask(task="rows", path=path, train_fraction=0.5, split=name) for name in ("train", "test")]
    codes = [Counter(side.question(n).row["code"] for n in range(side.num_questions)) for side in sides]
    assert [Counter(found.values()) for found in codes] == [{2: 5}, {2: 5}]
    assert not set(codes[0]) & set(codes[1])


def test_a_column_of_null_type(tmp_path):
    table = pa.table({"question": ["Q?"], "answer": ["A"], "golden_answers": pa.nulls(1), "ability": pa.nulls(1)})
    pq.write_table(table, tmp_path / "a.parquet")
    assert task_of(tmp_path / "a.parquet", ability="qa").question(0).answers == ("A",)


@pytest.mark.parametrize("row", [
    {"question": "1/2?", "answers": ["1/2"], "ability": "math"},
    {"question": "1/2?", "golden_answers": ["1/2"], "ability": "math"},
])  # fmt: skip
def test_a_row_knows_its_ability_better_than_a_layout_that_is_only_recognised(tmp_path, row):
    path = json_lines(tmp_path / "a.jsonl", [row])
    assert task_of(path).question(0).ability == "math"
    assert task_of(path, ability="qa").question(0).ability == "qa"
    assert DatasetTask(task="search_r1", path=path, split="test").question(0).ability == "qa"


CALL = {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "look", "arguments": "{}"}}]}
ASKED = {"role": "user", "content": "2 + 2?"}


@pytest.mark.parametrize(("prompt", "fault"), [
    ([ASKED, CALL, ASKED],
     "has a message with `tool_calls`, which a question cannot show: write the call into its content"),
])  # fmt: skip
@pytest.mark.parametrize("task", ["rows", "parquet"])
def test_a_prompt_that_the_model_would_read_otherwise_is_refused(tmp_path, task, prompt, fault):
    path = json_lines(tmp_path / "a.jsonl", [{"prompt": prompt, "answer": 4, "ability": "math"}])
    with pytest.raises(DataError) as raised:
        DatasetTask(task=task, path=path, split="test").question(0)
    assert str(raised.value) == f"{path}, row 0: `prompt` {fault}."


def test_a_prompt_may_be_json(tmp_path):
    texts = [json.dumps([{"role": "system", "content": "Be brief."}, ASKED]), "[1, 2]: sum?", "[1, 2]"]
    path = json_lines(tmp_path / "a.jsonl", [{"prompt": text, "answer": 4, "ability": "math"} for text in texts])
    found = [DatasetTask(task="rows", path=path, split="test").question(n).messages for n in range(3)]
    assert found == [(("system", "Be brief."), ("user", "2 + 2?")), (("user", texts[1]),), (("user", texts[2]),)]


@pytest.mark.parametrize("row", [
    {"answer": {"x": 1}}, {"answer": True}, {"answers": [["a"]]}, {"answer": float("nan")}, {"prompt": ""},
    {"prompt": {"text": "x"}},
])  # fmt: skip
def test_a_world_may_begin_with_any_columns(tmp_path, row):
    path = json_lines(tmp_path / "a.jsonl", [{"level": 3, **row}])
    question = DatasetTask(task="rows", path=path, split="test").question(0)
    assert (question.messages, question.answers, question.row["level"]) == ((), (), 3)
