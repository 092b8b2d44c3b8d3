"""Rows and files that do not fit are named, with the reason."""

import json
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from rllib_arpo.envs.errors import DataError
from rllib_arpo.envs.registry import validate_env_config
from rllib_arpo.envs.tasks import DatasetTask
from tests.helpers.datasets import LAYOUTS, asked, gsm8k, json_lines
from tests.helpers.parquet import parquet, row

SURROGATE = "'utf-8' codec can't encode character '\\ud800' in position 1: surrogates not allowed"


@pytest.mark.parametrize("ending", ["jsonl", "json"])
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"question": "Q?"}', "no `answer`."),
        ('{"question": null, "answer": "#### 1"}', "no `question` or `problem`."),
        ('{"question": ["Q?"], "answer": "#### 1"}', "`question` has no text."),
        ('{"question": "Q?", "answer": "18"}', "`answer` does not end with '#### answer'."),
        ("[1]", "not a JSON object."),
        ('{"question": "Q\\ud800?", "answer": "#### 1"}', f"not valid Unicode ({SURROGATE})."),
        ('{"question": "Q?", "answer": "#### \\ud800"}', f"not valid Unicode ({SURROGATE.replace(' 1:', ' 2:')})."),
    ],
)
def test_a_row_that_does_not_fit_is_named(tmp_path, ending, text, message):
    lines = [*map(json.dumps, gsm8k(3)), text]
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
        ("hotpotqa", {"answer": float("inf")}, "`answer` has a number that is not finite."),
        ("hotpotqa", {"answer": True}, "`answer` must be a string, a number, or a list of them."),
        ("arpo_mix", {"prompt": None}, "no `prompt`."),
        ("arpo_mix", {"prompt": "Q?"}, "`prompt` is not a list of {role, content}."),
        ("arpo_mix", {"prompt": [{"role": "user"}]}, "`prompt` has a message whose role or content is not a string."),
        ("arpo_mix", {"prompt": [{"role": "user", "content": " "}]}, "`prompt` has no user message with text."),
        ("arpo_mix", {"reward_model": "A"}, "`reward_model` is not an object with a `ground_truth`."),
        ("arpo_mix", {"reward_model": {"ground_truth": " "}}, "no answer (`reward_model` is empty)."),
        ("arpo_mix", {"ability": "art"}, "`ability` must be 'math' or 'qa', not 'art'."),
        ("arpo_mix", {"ability": None}, "`ability` must be 'math' or 'qa', not None."),
        ("rows", {"prompt": 3}, "`prompt` is not a list of {role, content}."),
        ("rows", {"prompt": " "}, "`prompt` has no text."),
        ("rows", {"prompt": "Q?", "answer": True}, "`answer` must be a string, a number, or a list of them."),
    ],
)
def test_other_rows_that_do_not_fit(tmp_path, name, changes, message):
    path = json_lines(tmp_path / "bad.jsonl", [{**LAYOUTS[name][0][0], **changes}])
    with pytest.raises(DataError) as error:
        DatasetTask(task=name, path=path).question(0)
    assert str(error.value) == f"{path}, row 0: {message}"


def test_bad_lines_are_named_when_they_are_asked(tmp_path):
    path = tmp_path / "lines.jsonl"
    path.write_bytes(b'\n{"question": "Q?", "answer": "#### 1"}\n\n  \n{"question": \n\xff\xfe\n' + b"[" * 100_000)
    task = DatasetTask(task="gsm8k", path=str(path), split="test")
    assert task.num_questions == 4 and task.question(0).source == f"{path}, row 1"
    for number, line in ((1, 4), (2, 5), (3, 6)):
        with pytest.raises(DataError, match=rf"lines.jsonl, row {line}: not JSON \("):
            task.question(number)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[1, ", r"not JSON \("),
        (b"[" * 100_000, r"not JSON \("),
        (b"[" + b"1" * 5000 + b"]", r"not JSON \("),
        (b"[]", "no rows"),
        (b'"text"', "a .json file holds a list of objects, or one object a line"),
        (b'{\n "question": "Q?"\n}', "a .json file holds a list of objects, or one object a line"),
    ],
)
def test_a_bad_json_file_is_named(tmp_path, content, message):
    (tmp_path / "list.json").write_bytes(content)
    with pytest.raises(DataError, match=rf"list.json: {message}"):
        DatasetTask(task="gsm8k", path=str(tmp_path / "list.json"))


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


def validate(path, tokenizer_folder, **env_config):
    config = {"model_name_or_path": tokenizer_folder, "path": path, "tools": ["python"], **env_config}
    validate_env_config("ParquetQuestions-v0", config)


def test_bad_files_are_refused_before_anything_starts(tmp_path, tokenizer_folder):
    good = parquet(tmp_path / "good.parquet", [row()])
    validate(good, tokenizer_folder)
    (tmp_path / "truncated.parquet").write_bytes(Path(good).read_bytes()[:-100])
    parquet(tmp_path / "lacks.parquet", [{"prompt": row()["prompt"], "ability": "math"}])
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([row()]).slice(0, 0), tmp_path / "empty.parquet")
    parquet(tmp_path / "long.parquet", [row("x" * 3000)])
    for name, message in (
        ("none.parquet", r"no such file\.$"),
        ("data.csv", r"rows are read from .parquet, .json, .jsonl files\.$"),
        ("truncated.parquet", r"not a readable parquet file \(.*\)\.$"),
        ("lacks.parquet", r"no column 'reward_model' \(there are: prompt, ability\)\.$"),
        ("empty.parquet", r"no rows\.$"),
    ):
        with pytest.raises(DataError, match=rf"{name}: {message}"):
            validate(str(tmp_path / name), tokenizer_folder)
    with pytest.raises(DataError, match=r"long.parquet, row 0: the prompt has 3\d+ tokens.*max_context_tokens = 2000"):
        validate(str(tmp_path / "long.parquet"), tokenizer_folder, max_context_tokens=2000)
    with pytest.raises(ValueError, match=r"env_config\['path'\] must name a .parquet, .json or .jsonl file"):
        validate(None, tokenizer_folder)
