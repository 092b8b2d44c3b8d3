"""A run on the disk: what plots read of it."""

import json

from rllib_arpo.plots.run_data import read_results, read_run, trial_folders


def test_the_record_of_a_run_without_results(record):
    run = read_run(record)
    assert (run.results, run.settings["num_rollouts"]) == ([], 5)
    rows = run.rows("training")
    rows = rows[rows["question_id"] == "lamps"].astype(object).where(lambda table: table.notna(), None)
    names = ["agent_id", "parent", "turn", "depth", "after_tool", "delta", "children", "accuracy"]
    assert list(rows[names].itertuples(index=False, name=None)) == [
        ("0", None, 0, 0, None, None, None, 1.0),
        ("0", None, 1, 1, "search", 0.25, 1, 1.0),
        ("1", None, 0, 0, None, None, None, 0.0),
        ("2", None, None, None, None, None, None, 0.0),
        ("0.0", "0", 0, 1, "search", None, None, 0.0),
    ]
    assert [entropies.tolist() for entropies in rows["entropies"][:2]] == [[0.5, 1.0], [2.0]]


def test_only_the_first_and_the_last_evaluation_are_read(record, tmp_path):
    (tmp_path / "trees").mkdir()
    source = record / "trees" / "evaluation-00003.parquet"
    for name in ("iteration-00001", "evaluation-00001", "evaluation-00002", "evaluation-00004"):
        (tmp_path / "trees" / f"{name}.parquet").write_bytes(source.read_bytes())
    assert len(read_run(tmp_path).record) == 3 * 10


def test_results_are_in_order_and_the_last_of_each_iteration_counts(tmp_path):
    rows = [{"training_iteration": 1}, {"training_iteration": 2, "of": "lost"}, {"training_iteration": 2, "of": "kept"}]
    path = tmp_path / "result.json"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows) + '{"training_iter')
    assert read_results(path) == [{"training_iteration": 1}, {"training_iteration": 2, "of": "kept"}]
    assert read_results(tmp_path / "missing.json") == []


def test_the_folders_of_trials(record, tmp_path):
    assert trial_folders(record) == [record]
    (tmp_path / "one").mkdir()
    (tmp_path / "one" / "result.json").touch()
    assert trial_folders(tmp_path) == [tmp_path / "one"]
    (tmp_path / "two" / "trees").mkdir(parents=True)
    assert trial_folders(tmp_path) == [tmp_path / "one", tmp_path / "two"]
