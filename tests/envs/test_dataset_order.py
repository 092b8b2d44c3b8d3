"""The rows of data files that are asked, and their order."""

import json
from pathlib import Path

import pytest

from rllib_arpo.envs.tasks import DatasetTask
from tests.helpers.datasets import asked, gsm8k, json_lines
from tests.helpers.parquet import parquet


@pytest.mark.parametrize("separators", ["[,]", " \n "])
def test_json_with_a_byte_order_mark(tmp_path, separators):
    begin, between, end = separators
    text = begin + between.join(map(json.dumps, gsm8k(4))) + end
    path = tmp_path / "marked.json"
    path.write_text(text, encoding="utf-8-sig")
    assert asked(DatasetTask(task="gsm8k", path=str(path), split="test")) == [0, 1, 2, 3]


def test_json_lines_may_be_called_json(tmp_path):
    path = json_lines(tmp_path / "lines.json", gsm8k(4))
    assert asked(DatasetTask(task="gsm8k", path=path, split="test")) == [0, 1, 2, 3]


def test_blank_lines_are_not_rows(tmp_path):
    path = Path(json_lines(tmp_path / "lines.jsonl", gsm8k(10)))
    path.write_text(path.read_text().replace("\n", "\n\n"))
    test = DatasetTask(task="gsm8k", path=str(path), split="test")
    assert asked(test) == list(range(10))
    assert [test.question(n).source for n in (4, 9)] == [f"{path}, row {line}" for line in (8, 18)]


def test_a_list_of_files(tmp_path):
    (tmp_path / "b").mkdir()
    first, second = (tmp_path / "test.jsonl", tmp_path / "b" / "test.parquet")
    task = DatasetTask(task="gsm8k", path=[json_lines(first, gsm8k(2)), parquet(second, gsm8k(3))], split="test")
    assert asked(task) == [0, 1, 0, 1, 2]
    assert [task.question(n).question_id for n in (1, 4)] == [f"{first}/1", f"{second}/2"]


def test_the_order_depends_on_seed_and_epoch_alone(tmp_path):
    path = json_lines(tmp_path / "a.jsonl", gsm8k(30))
    task = DatasetTask(task="gsm8k", path=path, seed=3)
    order = asked(task, range(60))
    assert sorted(order[:30]) == sorted(order[30:]) == list(range(30)) and order[:30] != order[30:]
    assert asked(DatasetTask(task="gsm8k", path=path, seed=3), range(59, -1, -1)) == order[::-1]
    assert asked(DatasetTask(task="gsm8k", path=path, seed=4), range(60)) != order


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({"limit": 3}, [0, 1, 2]),
        ({"limit": 99}, list(range(10))),
        ({"subset": (2, 5)}, [2, 3, 4]),
        ({"subset": [[8, 99], [0, 2], [1, 3]]}, [0, 1, 2, 8, 9]),
        ({"subset": (2, 9), "limit": 2}, [2, 3]),
    ],
)
def test_a_part_of_the_rows(tmp_path, keys, expected):
    path = json_lines(tmp_path / "a.jsonl", gsm8k(10))
    assert asked(DatasetTask(task="gsm8k", path=path, split="test", **keys)) == expected
    assert sorted(asked(DatasetTask(task="gsm8k", path=path, **keys))) == expected


def test_one_file_is_divided_once_and_for_all(tmp_path):
    path = json_lines(tmp_path / "a.jsonl", gsm8k(50))
    keys = {"task": "gsm8k", "path": path, "train_fraction": 0.8}
    train, test = asked(DatasetTask(**keys)), asked(DatasetTask(**keys, split="test"))
    assert (len(train), len(test)) == (40, 10)
    assert sorted(train + test) == list(range(50)) and test == sorted(test) != list(range(40, 50))
    assert asked(DatasetTask(**keys, split="test", seed=9)) == test


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"few_shot": 3}, r"env_config\['few_shot'\] must be from 0 to 2, not 3"),
        ({"limit": 0}, r"env_config\['limit'\] must be at least 1, not 0"),
        ({"subset": (3, 3)}, r"env_config\['subset'\] must be \(begin, end\)"),
        ({"subset": [[1, 2, 3]]}, r"env_config\['subset'\] must be \(begin, end\)"),
        ({"subset": (50, 60)}, "no rows"),
        ({"train_fraction": 1.0}, r"env_config\['train_fraction'\] must be between 0 and 1, not 1.0"),
        ({"split": "valid"}, "split must be 'train' or 'test', not 'valid'"),
        ({"hub_id": "openai/gsm8k"}, r"env_config\['path'\] and env_config\['hub_...'\] exclude each other"),
    ],
)
def test_a_wrong_key_is_named(tmp_path, keys, message):
    with pytest.raises(ValueError, match=message):
        DatasetTask(task="gsm8k", path=json_lines(tmp_path / "a.jsonl", gsm8k(10)), **keys)
