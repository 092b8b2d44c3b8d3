import pytest

from rllib_arpo.envs.errors import DataError
from rllib_arpo.envs.tasks import DatasetTask
from rllib_arpo.envs.tasks import rows as rows_module
from tests.helpers.parquet import parquet

datasets = pytest.importorskip("datasets", reason="The datasets library is not installed.")
ROWS = [{"question": f"Question {i}?", "answer": f"#### {i}"} for i in range(6)]


def asked(task: DatasetTask) -> list[int]:
    return [int(task.question(n).answers[0]) for n in range(task.num_questions)]


def test_a_data_set_of_the_datasets_library(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    (tmp_path / "files").mkdir()
    parquet(tmp_path / "files" / "test-00000-of-00001.parquet", ROWS)
    saved = datasets.DatasetDict({"test": datasets.Dataset.from_list(ROWS)})
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


def test_a_hub_that_is_not_reached_is_named(tmp_path, monkeypatch):
    loaded = []

    def load_dataset(*args, **kwargs):
        loaded.append((args, kwargs))
        raise ConnectionError("Couldn't reach the hub.")

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    with pytest.raises(
        DataError, match=r"^openai/gsm8k \(main\), split 'test': cannot be loaded \(Couldn't reach the hub\)"
    ):
        DatasetTask(task="gsm8k", split="test")
    assert loaded == [(("openai/gsm8k", "main"), {"split": "test"})]
    with pytest.raises(ValueError, match=r"HuggingFaceH4/MATH-500 has no split for env_config\['split'\] = 'train'"):
        DatasetTask(task="math500")


def test_other_content_has_another_mark(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", str(tmp_path / "cache"))
    folder = tmp_path / "files"
    folder.mkdir()

    def marks(rows) -> set[str]:
        parquet(folder / "test-00000-of-00001.parquet", rows)
        rows_module.open_hub.cache_clear()
        found = DatasetTask(task="gsm8k", hub_id=str(folder), split="test").inputs()
        assert list(found) == [f"{folder}, split 'test'"]
        return set(found.values())

    first = marks(ROWS)
    assert marks(ROWS[:5]) != first
