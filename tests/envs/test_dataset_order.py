"""The rows that a data set's task asks, in their order: of files in several formats, and of the Hugging Face hub."""

import json

import pytest

from rllib_arpo.envs.errors import DataError
from rllib_arpo.envs.tasks import DatasetTask
from rllib_arpo.envs.tasks import rows as rows_module
from rllib_arpo.envs.tasks.task import permutation
from tests.helpers.datasets import asked, gsm8k, json_lines
from tests.helpers.parquet import parquet


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


def test_one_file_is_divided_once_and_for_all(tmp_path):
    path = json_lines(tmp_path / "a.jsonl", gsm8k(50))
    keys = {"task": "gsm8k", "path": path, "train_fraction": 0.8}
    train, test = asked(DatasetTask(**keys)), asked(DatasetTask(**keys, split="test"))
    assert (len(train), len(test)) == (40, 10)
    assert sorted(train + test) == list(range(50)) and test == sorted(test) != list(range(40, 50))
    assert asked(DatasetTask(**keys, split="test", seed=9)) == test


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
