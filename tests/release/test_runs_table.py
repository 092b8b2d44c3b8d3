"""The table of runs, of iterations that are written by hand."""

from __future__ import annotations

import json
import math
import shutil

import pytest

from release.evidence.runs_table import first_evaluation, read_run, table_row


@pytest.fixture
def run(tmp_path):
    rollouts = [
        {"entropy": {"delta": 0.0789}, "decisive": {"auc": 0.9, "fork_share": 0.8}},
        {"entropy": {"delta": 0.01}, "decisive": {"auc": 1.0}},
        # RLlib's value for a metric that this iteration lacks.
        {"entropy": {"delta": math.nan}, "decisive": {"auc": math.nan, "fork_share": math.nan}},
    ]
    results = [
        {"training_iteration": i, "config": {"seed": 7}, "time_total_s": 60.0 * i, "env_runners": rollout}
        for i, rollout in enumerate(rollouts, 1)
    ]
    results[1]["evaluation"] = {"env_runners": {"accuracy": 0.96875}}
    results[2]["evaluation"] = {"env_runners": {"accuracy": math.nan}}
    folder = tmp_path / "ARPO" / "trial"
    folder.mkdir(parents=True)
    (folder / "result.json").write_text("".join(json.dumps(result) + "\n" for result in results))
    # The run was resumed by a version that began to count anew.
    answers = [(0, "a", 0.0), (0, "b", 1.0), (1, "a", 1.0), (0, "a", 1.0), (0, "b", 1.0)]
    rows = [{"evaluation": number, "question_id": name, "accuracy": accuracy} for number, name, accuracy in answers]
    (folder / "evaluations.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path


def test_means_are_over_the_iterations_that_have_the_figure(run):
    assert table_row(*read_run(run)) == "| 7 | +0.079 | 0.95 | 0.80 | 0.500 |  | 0.969 | 3 | 3.0 |"


def test_a_folder_without_a_run_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no result\.json below it"):
        read_run(tmp_path)


def test_only_the_first_evaluation_is_that_before_training():
    rows = [{"evaluation": n, "question_id": name} for n, name in [(0, "a"), (0, "b"), (0, "a"), (0, "c")]]
    assert first_evaluation(rows) == rows[:2]


def test_a_run_without_nodes_has_empty_cells():
    results = [{"training_iteration": 1, "config": {"seed": 0}, "time_total_s": 6.0, "env_runners": {}}]
    assert table_row(results, 0.25) == "| 0 |  |  |  | 0.250 |  |  | 1 | 0.1 |"


def test_a_folder_with_several_trials_is_refused(run):
    shutil.copytree(run / "ARPO" / "trial", run / "ARPO" / "trial_2")
    with pytest.raises(ValueError) as raised:
        read_run(run)
    assert str(raised.value) == f"{run}: has 2 trials, name the folder of one, such as {run / 'ARPO' / 'trial'}."
