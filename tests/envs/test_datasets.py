"""The questions that each data set's rows become, their order, and the task "rows", whose rows worlds begin with."""

from __future__ import annotations

import base64
import json
import logging
from dataclasses import fields
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from rllib_arpo.envs.env_config import ToolEnvConfig
from rllib_arpo.envs.errors import DataError
from rllib_arpo.envs.support.data_files import opened_parquet
from rllib_arpo.envs.tasks import TASKS, DatasetTask
from rllib_arpo.envs.tasks import rows as rows_module
from rllib_arpo.envs.tasks.task import permutation
from rllib_arpo.envs.tool_env import ToolEnv
from rllib_arpo.envs.worlds import Reply, World
from tests.helpers.datasets import WRITERS, asked, gsm8k, json_lines, row_of
from tests.helpers.parquet import parquet, row


def test_xbench_as_it_is_published(tmp_path):
    def encrypted(text: str, key: str) -> str:
        data, secret = text.encode(), key.encode()
        return base64.b64encode(bytes(byte ^ secret[i % len(secret)] for i, byte in enumerate(data))).decode()

    key = "canary-éà-123"
    record = {"id": "4", "prompt": encrypted("谁写的?", key), "answer": encrypted("鲁迅", key), "canary": key}
    task = DatasetTask(task="xbench", path=json_lines(tmp_path / "x.jsonl", [record]), split="test")
    question = task.question(0)
    assert (question.messages, question.answers) == ((("user", "谁写的?"),), ("鲁迅",))
    path = parquet(tmp_path / "plain.parquet", [{**record, "prompt": plain} for plain in ("Who?!", "谁写的?")])
    for row_number in (0, 1):
        complaint = rf"plain.parquet, row {row_number}: `prompt` is not encrypted with the row's `canary`\.$"
        with pytest.raises(DataError, match=complaint):
            DatasetTask(task="xbench", path=path, split="test").question(row_number)


@pytest.mark.parametrize(
    ("name", "column", "what"), [("hle", "image", "an image"), ("gaia", "file_name", "an attached file")]
)
@pytest.mark.parametrize("ending", WRITERS)
def test_rows_that_cannot_be_asked_are_skipped_and_counted(tmp_path, caplog, name, column, what, ending):
    base = row_of(name)
    records = [{**base, "answer": str(i), column: "x" if i % 3 == 0 else ""} for i in range(7)]
    path = WRITERS[ending](tmp_path / f"mixed.{ending}", records)
    with caplog.at_level(logging.WARNING):
        task = DatasetTask(task=name, path=path, split="test")
    assert asked(task) == [1, 2, 4, 5]
    assert task.question(2).source == f"{path}, row 4"
    message = f"{path}: 3 of 7 rows are skipped: they have {what}."
    # Counted once in a process, however many tasks read the file.
    assert asked(DatasetTask(task=name, path=path, split="test", limit=3)) == [1, 2, 4]
    assert caplog.messages == [message]
    with pytest.raises(DataError, match=rf"only.{ending}: 1 of 1 rows are skipped: they have {what}\.$"):
        DatasetTask(task=name, path=WRITERS[ending](tmp_path / f"only.{ending}", records[:1]))


def test_the_rows_own_system_message_is_kept_on_demand(tmp_path):
    messages = [{"role": "system", "content": "Be short."}, *row()["prompt"]]
    path = parquet(
        tmp_path / "a.parquet", [{**row(), "prompt": messages, "reward_model": {"ground_truth": ["2", "two"]}}]
    )
    question, kept = (DatasetTask(task="parquet", path=path, keep_system_prompt=keep).question(0) for keep in (0, 1))
    assert (question.messages, question.answers) == ((("user", "What is 1 + 1?"),), ("2", "two"))
    assert kept.messages == (("system", "Be short."), *question.messages)


def test_no_key_of_a_task_is_a_key_of_the_environment():
    own = {f.name for f in fields(ToolEnvConfig)}
    assert {f.name for task in TASKS.values() for f in fields(task)} & own == {"task"}


def test_bad_lines_are_named_when_they_are_asked_also_of_a_file_that_is_divided(tmp_path):
    path = tmp_path / "lines.jsonl"
    path.write_bytes(b'\n{"question": "Q?", "answer": "#### 1"}\n\n  \n{"question": \n\xff\xfe\n' + b"[" * 100_000)
    keys = {"task": "gsm8k", "path": str(path)}
    task = DatasetTask(**keys, split="test")
    assert task.num_questions == 4 and task.question(0).source == f"{path}, row 1"
    for number, line in ((1, 4), (2, 5), (3, 6)):
        with pytest.raises(DataError, match=rf"lines.jsonl, row {line}: not JSON \("):
            task.question(number)
    assert sum(DatasetTask(**keys, split=name, train_fraction=0.5).num_questions for name in ("train", "test")) == 4


@pytest.mark.parametrize("ending", ["jsonl", "json"])
def test_a_file_that_cannot_be_read_is_named(tmp_path, ending):
    path = tmp_path / f"memory.{ending}"
    path.symlink_to("/proc/self/mem")
    with pytest.raises(DataError, match=rf"memory.{ending}: not readable \(.*Input/output error\)\.$"):
        DatasetTask(task="gsm8k", path=str(path))


def test_parquet_that_cannot_be_decoded_is_named(tmp_path):
    path = tmp_path / "bytes.parquet"
    texts = pyarrow.array([b"Q?", b"\xff"]).view(pyarrow.string())
    pyarrow.parquet.write_table(pyarrow.table({"question": texts, "answer": ["#### 1"] * 2}), path)
    with pytest.raises(DataError, match=r"bytes.parquet, row 1: not UTF-8 \("):
        DatasetTask(task="gsm8k", path=str(path), split="test").question(1)
    path = parquet(tmp_path / "damaged.parquet", [row("x" * 50)] * 8)
    column = pyarrow.parquet.ParquetFile(path).metadata.row_group(0).column(1)
    content = bytearray(Path(path).read_bytes())
    begin = column.dictionary_page_offset or column.data_page_offset
    content[begin : begin + column.total_compressed_size] = b"\xff" * column.total_compressed_size
    Path(path).write_bytes(content)
    with pytest.raises(DataError, match=r"damaged.parquet: not a readable parquet file"):
        DatasetTask(task="parquet", path=path, split="test").question(5)


@pytest.mark.parametrize("separators", ["[,]", " \n ", " \n\n\n "])
def test_json_with_a_byte_order_mark_and_blank_lines(tmp_path, separators):
    begin, *between, end = separators
    path = tmp_path / "marked.json"
    path.write_text(begin + "".join(between).join(map(json.dumps, gsm8k(4))) + end, encoding="utf-8-sig")
    assert asked(DatasetTask(task="gsm8k", path=str(path), split="test")) == [0, 1, 2, 3]


def test_a_list_of_files(tmp_path):
    (tmp_path / "b").mkdir()
    first, second = (tmp_path / "test.jsonl", tmp_path / "b" / "test.parquet")
    task = DatasetTask(task="gsm8k", path=[json_lines(first, gsm8k(2)), parquet(second, gsm8k(3))], split="test")
    assert asked(task) == [0, 1, 0, 1, 2]
    assert [task.question(n).question_id for n in (1, 4)] == [f"{first}/1", f"{second}/2"]


def test_no_file_of_many_is_read_again(tmp_path, monkeypatch):
    opened = []
    monkeypatch.setattr(rows_module, "opened_parquet", lambda path: opened.append(path) or opened_parquet(path))
    paths = [parquet(tmp_path / f"{i}.parquet", gsm8k(1)) for i in range(40)]
    for _ in range(2):
        assert asked(DatasetTask(task="gsm8k", path=paths, split="test"), range(80)) == [0] * 80
        # Once for its number of rows, once for its rows.
        assert sorted(opened) == sorted(2 * paths)


def test_every_epoch_asks_every_row_once_in_an_order_of_its_own(tmp_path):
    path = json_lines(tmp_path / "a.jsonl", gsm8k(10))
    task = DatasetTask(task="gsm8k", path=path, seed=1)
    epochs = [asked(task, range(e * 10, e * 10 + 10)) for e in range(3)]
    assert epochs == [list(permutation(1, epoch, 10, stream=1)) for epoch in range(3)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(10))] * 3
    assert epochs[0] != epochs[1] != epochs[2] != asked(DatasetTask(task="gsm8k", path=path, seed=2), range(20, 30))
    assert asked(task, range(19, 12, -1)) == epochs[1][:2:-1]
    assert asked(DatasetTask(task="gsm8k", path=path, split="test"), range(20)) == [*range(10), *range(10)]
    assert sorted(asked(DatasetTask(task="gsm8k", path=path, limit=3))) == [0, 1, 2]
    assert asked(DatasetTask(task="gsm8k", path=path, limit=99, split="test")) == [*range(10)]


@pytest.fixture
def datasets(tmp_path, monkeypatch):
    library = pytest.importorskip("datasets", reason="The datasets library is not installed.")
    monkeypatch.setattr(library.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    (tmp_path / "files").mkdir()
    return library


def test_a_data_set_of_the_datasets_library(tmp_path, datasets):
    parquet(tmp_path / "files" / "test-00000-of-00001.parquet", gsm8k(6))
    saved = datasets.DatasetDict({"test": datasets.Dataset.from_list(gsm8k(6))})
    saved.save_to_disk(tmp_path / "saved")
    saved["test"].save_to_disk(tmp_path / "single")
    for folder in ("files", "saved", "single"):
        task = DatasetTask(task="gsm8k", hub_id=str(tmp_path / folder), split="test")
        assert asked(task) == list(range(6))
        assert task.question(4).source == f"{tmp_path / folder}, split 'test', row 4"
    train = DatasetTask(task="gsm8k", hub_id=str(tmp_path / "saved"), hub_split="test", limit=4)
    assert sorted(asked(train)) == [0, 1, 2, 3]
    with pytest.raises(DataError, match=r"saved, split 'train': cannot be loaded \('train'\)"):
        DatasetTask(task="gsm8k", hub_id=str(tmp_path / "saved"))


def test_a_hub_that_is_not_reached_is_named(monkeypatch, datasets):
    loaded = []

    def load_dataset(*args, **kwargs):
        loaded.append((args, kwargs))
        raise ConnectionError("Couldn't reach the hub.")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    message = r"^openai/gsm8k \(main\), split 'test': cannot be loaded \(Couldn't reach the hub\)"
    with pytest.raises(DataError, match=message):
        DatasetTask(task="gsm8k", split="test")
    assert loaded == [(("openai/gsm8k", "main"), {"split": "test"})]
    with pytest.raises(ValueError, match=r"HuggingFaceH4/MATH-500 has no split for env_config\['split'\] = 'train'"):
        DatasetTask(task="math500")


def test_other_content_has_another_mark(tmp_path, datasets):
    folder = tmp_path / "files"

    def marks(rows) -> set[str]:
        parquet(folder / "test-00000-of-00001.parquet", rows)
        rows_module.open_hub.cache_clear()
        found = DatasetTask(task="gsm8k", hub_id=str(folder), split="test").inputs()
        assert list(found) == [f"{folder}, split 'test'"]
        return set(found.values())

    first = marks(gsm8k(6))
    assert marks(gsm8k(5)) != first


MESSAGES = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Who?"}]


@pytest.mark.parametrize(
    ("row", "messages", "answers", "ability"),
    [
        ({"prompt": MESSAGES, "answers": ["A", "B"], "extra": {"key": [1, 2]}, "ability": "art"},
         (("system", "Be brief."), ("user", "Who?")), ("A", "B"), "qa"),
        ({"prompt": "Who?", "answer": ""}, (("user", "Who?"),), (), "qa"),
        ({"level": 3}, (), (), "qa"),
    ],
)  # fmt: skip
@pytest.mark.parametrize("ending", WRITERS)
def test_the_whole_row_is_what_a_world_begins_with(tmp_path, ending, row, messages, answers, ability):
    task = DatasetTask(task="rows", path=WRITERS[ending](tmp_path / f"r.{ending}", [row]), split="test")
    question = task.question(0)
    assert (question.messages, question.answers, question.ability) == (messages, answers, ability)
    assert (question.row, question.question_id, task.tools) == (row, "r/0", ())


class Echo(World):
    takes_text = True

    async def reset(self, question):
        return f"Level {question.row['level']}."

    async def act(self, action):
        return Reply("", reward=1.0, done=True)


def test_answers_are_needed_where_nothing_else_scores(tmp_path, tokenizer_folder, begun, turn):
    (tmp_path / "r.jsonl").write_text('{"prompt": "Who?", "level": 3}\n{"level": 4}')
    rows = {"task": "rows", "path": str(tmp_path / "r.jsonl"), "split": "test"}
    message = r"r\.jsonl, row 0: no right answer \(.*\): only a world or a reward of your own can do without one\.$"
    with pytest.raises(DataError, match=message):
        begun(**rows)
    with pytest.raises(DataError, match=message):
        ToolEnv.validate_config({"model_name_or_path": tokenizer_folder, "reward": {"accuracy": 1.0}, **rows})
    with pytest.raises(DataError, match=r"r\.jsonl, row 1: neither the task nor the world asks anything\.$"):
        begun(1, reward="valid_format", **rows)
    env = begun(reward=lambda path: len(path.answer), **rows)
    assert turn(env, "0", "<answer> \\boxed{me} </answer>")[1] == 2.0
    env = begun(1, world=Echo, **rows)
    assert "Level 4." in env.tokenizer.decode(env._prompt.tolist())
    assert turn(env, "0", "Hm.")[1] == 1.0
