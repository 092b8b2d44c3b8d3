"""The data that plots read of a run's folder."""

import json
from pathlib import Path

import pytest

from rllib_arpo.commands import main
from rllib_arpo.plots.run_data import read_results, read_run, trial_folders


def write_results(folder: Path, *rows: dict, unfinished: str = "") -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "result.json"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + unfinished)
    return path


def test_the_record_of_a_run_without_results(record):
    run = read_run(record)
    assert run.results == []
    assert run.settings["num_rollouts"] == 5
    rows = run.rows("training").filter([name == "lamps" for name in run.rows("training")["question_id"].to_pylist()])
    names = ("agent_id", "parent", "turn", "depth", "after_tool", "delta", "children", "accuracy")
    assert [tuple(row[name] for name in names) for row in rows.to_pylist()] == [
        ("0", None, 0, 0, None, None, None, 1.0),
        ("0", None, 1, 1, "search", 0.25, 1, 1.0),
        ("1", None, 0, 0, None, None, None, 0.0),
        ("2", None, None, None, None, None, None, 0.0),
        ("0.0", "0", 0, 1, "search", None, None, 0.0),
    ]
    assert rows["entropies"].to_pylist()[:2] == [[0.5, 1.0], [2.0]]
    assert sorted(set(run.rows("evaluation")["iteration"].to_pylist())) == [0, 3]


def test_only_the_first_and_the_last_evaluation_are_read(record, tmp_path):
    (tmp_path / "trees").mkdir()
    source = record / "trees" / "evaluation-00003.parquet"
    for name in ("iteration-00001", "evaluation-00001", "evaluation-00002", "evaluation-00004"):
        (tmp_path / "trees" / f"{name}.parquet").write_bytes(source.read_bytes())
    assert read_run(tmp_path).record.num_rows == 3 * 10


def test_results_are_in_order_and_the_last_of_each_iteration_counts(tmp_path):
    rows = [{"training_iteration": 1}, {"training_iteration": 2, "of": "lost"}, {"training_iteration": 2, "of": "kept"}]
    path = write_results(tmp_path, *rows, unfinished='{"training_iter')
    assert read_results(path) == [{"training_iteration": 1}, {"training_iteration": 2, "of": "kept"}]
    assert read_results(tmp_path / "missing.json") == []


def test_the_folders_of_trials(record, tmp_path, capsys):
    assert trial_folders(record) == [record]
    with pytest.raises(ValueError) as error:
        trial_folders(tmp_path)
    assert str(error.value) == f"{tmp_path}: not the folder of a run: it has no result.json and no trees."
    write_results(tmp_path / "one")
    assert trial_folders(tmp_path) == [tmp_path / "one"]
    (tmp_path / "two" / "trees").mkdir(parents=True)
    assert trial_folders(tmp_path) == [tmp_path / "one", tmp_path / "two"]
    assert main(["show", str(tmp_path), "--plots"]) == 2
    sentence = f"{tmp_path}: has 2 trials; name the folder of one, such as {tmp_path / 'one'}."
    assert capsys.readouterr().err == f"error: {sentence}\n"
