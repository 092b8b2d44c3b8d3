from pathlib import Path

import pyarrow
import pyarrow.parquet
import pytest

from rllib_arpo.envs.errors import DataError
from rllib_arpo.envs.registry import validate_env_config
from rllib_arpo.envs.tasks.dataset import DatasetTask
from rllib_arpo.envs.tasks.task import permutation


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


def test_every_epoch_asks_every_row_once_in_an_order_of_its_own(file):
    task = parquet_task(path=file, seed=1)
    epochs = [rows_asked(task, range(e * 10, e * 10 + 10)) for e in range(3)]
    assert epochs == [list(permutation(1, epoch, 10, stream=1)) for epoch in range(3)]
    assert [sorted(epoch) for epoch in epochs] == [list(range(10))] * 3
    assert epochs[0] != epochs[1] != epochs[2] != rows_asked(parquet_task(path=file, seed=2), range(20, 30))
    assert rows_asked(task, range(13, 20)) == epochs[1][3:]
    assert rows_asked(parquet_task(path=file, split="test"), range(20)) == [*range(10), *range(10)]


def test_several_files_are_one(file, tmp_path):
    other = write(tmp_path / "more.parquet", [make_row(i) for i in range(3)])
    task = parquet_task(path=[file, other])
    ids = {task.question(n).question_id for n in range(13)}
    assert task.num_questions == 13
    assert ids == {f"questions/{i}" for i in range(10)} | {f"more/{i}" for i in range(3)}


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


def test_a_damaged_file_is_named(tmp_path):
    path = write(tmp_path / "damaged.parquet", [make_row(i, data_source="x" * 50) for i in range(8)])
    column = pyarrow.parquet.ParquetFile(path).metadata.row_group(1).column(1)
    content = bytearray(Path(path).read_bytes())
    begin = column.dictionary_page_offset or column.data_page_offset
    content[begin : begin + column.total_compressed_size] = b"\xff" * column.total_compressed_size
    Path(path).write_bytes(content)
    with pytest.raises(DataError, match=r"damaged.parquet: not a readable parquet file"):
        parquet_task(path=path, split="test").question(5)


def test_a_prompt_longer_than_the_context_names_file_and_row(tmp_path, tokenizer_folder):
    rows = [make_row(0, prompt=[{"role": "user", "content": "x" * 3000}])]
    path = write(tmp_path / "long.parquet", rows)
    with pytest.raises(DataError, match=r"long.parquet, row 0: the prompt has 3\d+ tokens.*max_context_tokens = 2000"):
        validate(path, tokenizer_folder, max_context_tokens=2000)
