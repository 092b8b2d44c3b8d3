import itertools
from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from rllib_arpo.envs.errors import DataError
from rllib_arpo.envs.registry import validate_env_config
from rllib_arpo.envs.tasks.dataset import DatasetTask
from rllib_arpo.envs.tasks.rows import load_block
from rllib_arpo.envs.tasks.task import permutation

SIZES = (4, 4, 2)


def make_row(i: int, **changes) -> dict:
    row = {
        "data_source": "test",
        "prompt": [{"content": "Their instruction.", "role": "system"}, {"content": f"Question {i}?", "role": "user"}],
        "ability": "math" if i % 2 else "qa",
        "reward_model": {"ground_truth": f"answer {i}", "style": "rule"},
        "extra_info": {"index": i},
    }
    return {**row, **changes}


def write(path, rows, row_group_size=4) -> str:
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path, row_group_size=row_group_size)
    return str(path)


@pytest.fixture
def file(tmp_path) -> str:
    return write(tmp_path / "questions.parquet", [make_row(i) for i in range(10)])


def parquet_task(**keys) -> DatasetTask:
    return DatasetTask(task="parquet", **keys)


def rows_asked(task: DatasetTask, numbers) -> list[int]:
    return [int(task.question(n).question_id.split("/")[1]) for n in numbers]


def test_a_question(file):
    question = parquet_task(path=file, split="test").question(3, ("python",))
    assert (question.question_id, question.answers, question.ability) == ("questions/3", ("answer 3",), "math")
    assert question.messages == (("user", "Question 3?"),)
    kept = parquet_task(path=file, split="test", keep_system_prompt=True).question(3)
    assert kept.messages[0] == ("system", "Their instruction.")


def test_every_epoch_asks_every_row_once_group_by_group(file):
    task = parquet_task(path=file, seed=1)
    epochs = [rows_asked(task, range(e * 10, e * 10 + 10)) for e in range(3)]
    for epoch in epochs:
        assert sorted(epoch) == list(range(10))
        groups = [row // 4 for row in epoch]
        assert sum(a != b for a, b in itertools.pairwise(groups)) == 2
    assert epochs[0] != epochs[1] != epochs[2]
    assert rows_asked(parquet_task(path=file, split="test"), range(20)) == [*range(10), *range(10)]


def test_the_order_depends_on_the_seed_alone(file):
    order = rows_asked(parquet_task(path=file, seed=1), range(30))
    assert rows_asked(parquet_task(path=file, seed=1), range(30)) == order
    assert rows_asked(parquet_task(path=file, seed=2), range(30)) != order


def test_random_access_agrees_with_the_order_written_out(file):
    order = []
    for epoch in range(3):
        for group in permutation(7, epoch, 3):
            begin = sum(SIZES[:group])
            order += [begin + int(row) for row in permutation(7, epoch, SIZES[group], stream=1 + int(group))]
    assert rows_asked(parquet_task(path=file, seed=7), range(30)) == order


def test_sharding_and_resuming_are_choices_of_numbers(file):
    order = rows_asked(parquet_task(path=file), range(20))
    shards = [rows_asked(parquet_task(path=file), range(first, 20, 2)) for first in (0, 1)]
    assert [row for pair in zip(*shards, strict=True) for row in pair] == order
    assert rows_asked(parquet_task(path=file), range(13, 20)) == order[13:]


def test_several_files_are_one(file, tmp_path):
    other = write(tmp_path / "more.parquet", [make_row(i) for i in range(3)])
    task = parquet_task(path=[file, other])
    ids = {task.question(n).question_id for n in range(13)}
    assert task.num_questions == 13
    assert ids == {f"questions/{i}" for i in range(10)} | {f"more/{i}" for i in range(3)}


def test_only_the_groups_that_are_asked_for_are_read(file, monkeypatch):
    load_block.cache_clear()
    read = []
    original = pyarrow.parquet.ParquetFile.read_row_group
    monkeypatch.setattr(
        pyarrow.parquet.ParquetFile,
        "read_row_group",
        lambda self, i, **kwargs: (read.append((i, kwargs["columns"])), original(self, i, **kwargs))[1],
    )
    task = parquet_task(path=file, split="test")
    rows_asked(task, (9, 8, 4, 9))
    assert read == [(2, ["prompt", "ability", "reward_model"]), (1, ["prompt", "ability", "reward_model"])]


def test_several_right_answers(tmp_path):
    split = make_row(0, reward_model={"ground_truth": "NYC<|answer_split|>New York"})
    assert parquet_task(path=write(tmp_path / "a.parquet", [split])).question(0).answers == ("NYC", "New York")
    listed = make_row(0, reward_model={"ground_truth": ["NYC", "New York"]})
    assert parquet_task(path=write(tmp_path / "b.parquet", [listed])).question(0).answers == ("NYC", "New York")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prompt": []}, "`prompt` has no user message with text."),
        ({"prompt": None}, "no `prompt`."),
        (
            {"prompt": [{"content": " ", "role": "user"}]},
            "`prompt` has no user message with text.",
        ),
        ({"reward_model": None}, "no `reward_model`."),
        ({"reward_model": {"ground_truth": " "}}, "no answer (`reward_model` is empty)."),
        ({"ability": "art"}, "`ability` must be 'math' or 'qa', not 'art'."),
        ({"ability": None}, "`ability` must be 'math' or 'qa', not None."),
    ],
)
def test_a_bad_row_is_named(tmp_path, changes, message):
    path = write(tmp_path / "bad.parquet", [make_row(i, **(changes if i == 6 else {})) for i in range(8)])
    task = parquet_task(path=path, split="test")
    task.question(5)
    with pytest.raises(DataError) as error:
        task.question(6)
    assert str(error.value) == f"{path}, row 6: {message}"


def validate(path, tokenizer_folder, **env_config):
    config = {"model_name_or_path": tokenizer_folder, "path": path, "tools": ["python"], **env_config}
    validate_env_config("ParquetQuestions-v0", config)


def test_bad_files_are_refused_before_anything_starts(file, tmp_path, tokenizer_folder):
    validate(file, tokenizer_folder)
    with pytest.raises(DataError, match=r"^.*none.parquet: no such file\.$"):
        validate(str(tmp_path / "none.parquet"), tokenizer_folder)
    truncated = tmp_path / "truncated.parquet"
    truncated.write_bytes(Path(file).read_bytes()[:-100])
    with pytest.raises(DataError, match=r"^.*truncated.parquet: not a readable parquet file \(.*\)\.$"):
        validate(str(truncated), tokenizer_folder)
    rows = [{k: v for k, v in make_row(0).items() if k != "reward_model"}]
    with pytest.raises(
        DataError, match=r"^.*lacks.parquet: no column 'reward_model' \(there are: data_source, prompt, ability"
    ):
        validate(write(tmp_path / "lacks.parquet", rows), tokenizer_folder)
    empty = pyarrow.Table.from_pylist([make_row(0)]).slice(0, 0)
    pyarrow.parquet.write_table(empty, tmp_path / "empty.parquet")
    with pytest.raises(DataError, match=r"^.*empty.parquet: no rows\.$"):
        validate(str(tmp_path / "empty.parquet"), tokenizer_folder)
    with pytest.raises(ValueError, match=r"env_config\['path'\] must name a .parquet, .json or .jsonl file"):
        validate(None, tokenizer_folder)


def test_a_damaged_row_group_is_named(tmp_path):
    path = write(tmp_path / "damaged.parquet", [make_row(i, data_source="x" * 50) for i in range(8)])
    column = pyarrow.parquet.ParquetFile(path).metadata.row_group(1).column(1)
    content = bytearray(Path(path).read_bytes())
    begin = column.dictionary_page_offset or column.data_page_offset
    content[begin : begin + column.total_compressed_size] = b"\xff" * column.total_compressed_size
    Path(path).write_bytes(content)
    task = parquet_task(path=path, split="test")
    task.question(3)
    with pytest.raises(DataError, match=r"damaged.parquet, row 4: row group 1 is not readable"):
        task.question(5)


def test_a_prompt_longer_than_the_context_names_file_and_row(tmp_path, tokenizer_folder):
    rows = [make_row(0, prompt=[{"role": "user", "content": "x" * 3000}])]
    path = write(tmp_path / "long.parquet", rows)
    with pytest.raises(DataError, match=r"long.parquet, row 0: the prompt has 3\d+ tokens.*max_context_tokens = 2000"):
        validate(path, tokenizer_folder, max_context_tokens=2000)
