"""Rows and files that do not fit are named, with the reason."""

import json

import pyarrow
import pyarrow.parquet
import pytest

from rllib_arpo.envs.errors import DataError
from rllib_arpo.envs.tasks import DatasetTask
from tests.helpers.datasets import LAYOUTS, asked, gsm8k, json_lines
from tests.helpers.parquet import parquet

SURROGATE = "'utf-8' codec can't encode character '\\ud800' in position 1: surrogates not allowed"


@pytest.mark.parametrize("ending", ["jsonl", "json"])
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"question": "Q?"}', "no `answer`."),
        ('{"answer": "#### 1"}', "no `question` or `problem`."),
        ('{"question": null, "answer": "#### 1"}', "no `question` or `problem`."),
        ('{"question": " ", "answer": "#### 1"}', "`question` has no text."),
        ('{"question": ["Q?"], "answer": "#### 1"}', "`question` has no text."),
        ('{"question": "Q?", "answer": "18"}', "`answer` does not end with '#### answer'."),
        ('{"question": "Q?", "answer": 18}', "`answer` does not end with '#### answer'."),
        ("[1]", "not a JSON object."),
        ('{"question": "Q\\ud800?", "answer": "#### 1"}', f"not valid Unicode ({SURROGATE})."),
        ('{"question": "Q?", "answer": "#### \\ud800"}', f"not valid Unicode ({SURROGATE.replace(' 1:', ' 2:')})."),
    ],
)
def test_a_row_that_does_not_fit_is_named(tmp_path, ending, text, message):
    good = [json.dumps(record) for record in gsm8k(3)]
    lines = [*good, text]
    path = tmp_path / f"bad.{ending}"
    path.write_text("\n".join(lines) if ending == "jsonl" else f"[{', '.join(lines)}]")
    task = DatasetTask(task="gsm8k", path=str(path), split="test")
    assert asked(task, range(3)) == [0, 1, 2]
    with pytest.raises(DataError) as error:
        task.question(3)
    assert str(error.value) == f"{path}, row 3: {message}"


@pytest.mark.parametrize(
    ("name", "changes", "message"),
    [
        ("math500", {"unique_id": "a\ud800"}, f"not valid Unicode ({SURROGATE})."),
        ("math", {"solution": "It is 5."}, "`solution` has no \\boxed{}."),
        ("math", {"solution": "\\boxed{5"}, "`solution` has a \\boxed{ that is not closed."),
        ("hotpotqa", {"answer": []}, "no answer (`answer` is empty)."),
        ("hotpotqa", {"answer": {"a": 1}}, "`answer` must be a string, a number, or a list of them."),
        ("hotpotqa", {"answer": True}, "`answer` must be a string, a number, or a list of them."),
        ("arpo_mix", {"prompt": "Q?"}, "`prompt` is not a list of {role, content}."),
        ("arpo_mix", {"prompt": [{"role": "user"}]}, "`prompt` has a message whose role or content is not a string."),
        ("arpo_mix", {"reward_model": "A"}, "`reward_model` is not an object with a `ground_truth`."),
        ("arpo_mix", {"ability": "art"}, "`ability` must be 'math' or 'qa', not 'art'."),
    ],
)
def test_other_rows_that_do_not_fit(tmp_path, name, changes, message):
    path = json_lines(tmp_path / "bad.jsonl", [{**LAYOUTS[name][0][0], **changes}])
    with pytest.raises(DataError) as error:
        DatasetTask(task=name, path=path).question(0)
    assert str(error.value) == f"{path}, row 0: {message}"


def test_bad_lines_and_files_are_named(tmp_path):
    path = tmp_path / "lines.jsonl"
    path.write_bytes(b'\n{"question": "Q?", "answer": "#### 1"}\n\n  \n{"question": \n\xff\xfe\n')
    task = DatasetTask(task="gsm8k", path=str(path), split="test")
    assert task.num_questions == 3 and task.question(0).source == f"{path}, row 1"
    with pytest.raises(DataError, match=r"lines.jsonl, row 4: not JSON \("):
        task.question(1)
    with pytest.raises(DataError, match=r"lines.jsonl, row 5: not JSON \("):
        task.question(2)
    for content, message in (
        (b"[1, ", r"not JSON \("),
        (b"[" * 100_000, r"not JSON \("),
        (b"[" + b"1" * 5000 + b"]", r"not JSON \("),
        (b"", "not JSON"),
        (b"[]", "no rows"),
        (b'"text"', "a .json file holds a list of objects, or one object a line"),
        (
            b'{\n "question": "Q?",\n "answer": "#### 1"\n}',
            "a .json file holds a list of objects, or one object a line",
        ),
    ):
        (tmp_path / "list.json").write_bytes(content)
        with pytest.raises(DataError, match=rf"list.json: {message}"):
            DatasetTask(task="gsm8k", path=str(tmp_path / "list.json"))
    with pytest.raises(DataError, match=r"data.csv: rows are read from .parquet, .json, .jsonl files\.$"):
        DatasetTask(task="gsm8k", path="data.csv")
    with pytest.raises(DataError, match=r"none.json: no such file\.$"):
        DatasetTask(task="gsm8k", path=str(tmp_path / "none.json"))
    with pytest.raises(DataError, match=r"no column 'question' or 'problem' \(there are: Q, answer\)\.$"):
        DatasetTask(task="gsm8k", path=parquet(tmp_path / "columns.parquet", [{"Q": "Q?", "answer": "#### 1"}]))


def test_rows_that_cannot_be_decoded_are_named(tmp_path):
    path = tmp_path / "deep.jsonl"
    path.write_bytes(b"[" * 100_000)
    with pytest.raises(DataError, match=r"deep.jsonl, row 0: not JSON \("):
        DatasetTask(task="gsm8k", path=str(path)).question(0)
    path = tmp_path / "bytes.parquet"
    texts = pyarrow.array([b"Q?", b"\xff"]).view(pyarrow.string())
    pyarrow.parquet.write_table(pyarrow.table({"question": texts, "answer": ["#### 1"] * 2}), path)
    with pytest.raises(DataError, match=r"bytes.parquet, row 1: not UTF-8 \("):
        DatasetTask(task="gsm8k", path=str(path), split="test").question(1)


@pytest.mark.parametrize("ending", ["jsonl", "json"])
def test_a_file_that_cannot_be_read_is_named(tmp_path, ending):
    path = tmp_path / f"memory.{ending}"
    path.symlink_to("/proc/self/mem")
    with pytest.raises(DataError, match=rf"memory.{ending}: not readable \(.*Input/output error\)\.$"):
        DatasetTask(task="gsm8k", path=str(path))
