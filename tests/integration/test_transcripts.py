"""The evaluations of a Tune run are in its record, and shown before and after."""

from __future__ import annotations

from pathlib import Path

from ray import tune

from rllib_arpo.record.read import questions
from rllib_arpo.tracking.transcripts import EvaluationTranscripts, evaluation_files, say_before_and_after
from tests.helpers.configs import small_config


def test_evaluations_are_recorded_before_the_first_iteration_and_after_it(ray_cluster, model_folder, tmp_path, capsys):
    config = small_config(model_folder).callbacks(EvaluationTranscripts).evaluation(evaluation_interval=1)
    config.adaptive_rollout(record_entropies="all", max_turn_tokens=24)
    results = tune.Tuner(
        "ARPO",
        param_space=config,
        run_config=tune.RunConfig(storage_path=str(tmp_path), stop={"training_iteration": 1}, verbose=0),
    ).fit()
    files = evaluation_files(Path(results[0].path))
    assert [file.path.name for file in files] == ["evaluation-00000.parquet", "evaluation-00001.parquet"]
    turns = [turn for file in files for question in questions(file) for turn in question.turns()]
    assert all(len(turn["entropies"]) == len(turn["token_ids"]) <= 24 for turn in turns)
    # Beyond the window of four tokens.
    assert max(len(turn["entropies"]) for turn in turns) > 4
    say_before_and_after(results)
    assert "Greedy accuracy on 3 held-out questions: 0.000 before, 0.000 after." in capsys.readouterr().out
