"""The results of a run on the disk."""

import json

from rllib_arpo.mlflow.results import read_results, trial_folders


def test_results_are_in_order_and_the_last_of_each_iteration_counts(tmp_path):
    rows = [{"training_iteration": 1}, {"training_iteration": 2, "of": "lost"}, {"training_iteration": 2, "of": "kept"}]
    path = tmp_path / "result.json"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"training_iter')
    assert read_results(path) == [{"training_iteration": 1}, {"training_iteration": 2, "of": "kept"}]
    assert read_results(tmp_path / "missing.json") == []


def test_the_folders_of_trials(tmp_path):
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "result.json").touch()
    assert trial_folders(tmp_path / "one") == [tmp_path / "one"]
    assert trial_folders(tmp_path) == [tmp_path / "one"]
    (tmp_path / "two" / "trees").mkdir(parents=True)
    assert trial_folders(tmp_path) == [tmp_path / "one", tmp_path / "two"]
