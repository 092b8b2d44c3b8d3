"""The evaluations of a Tune run are kept with its results, and shown before and after."""

from __future__ import annotations

import json
from pathlib import Path

from ray import tune

from rllib_arpo.tracking.transcripts import EVALUATIONS_FILE, EvaluationTranscripts, say_before_and_after
from tests.helpers.configs import small_config


def test_transcripts_lie_with_the_results(ray_cluster, model_folder, tmp_path, capsys):
    config = small_config(model_folder).callbacks(EvaluationTranscripts).evaluation(evaluation_interval=1)
    config.adaptive_rollout(record_entropies="all", max_turn_tokens=24)
    results = tune.Tuner(
        "ARPO",
        param_space=config,
        run_config=tune.RunConfig(storage_path=str(tmp_path), stop={"training_iteration": 1}, verbose=0),
    ).fit()
    rows = [json.loads(line) for line in (Path(results[0].path) / EVALUATIONS_FILE).read_text().splitlines()]
    assert [row["evaluation"] for row in rows] == [0, 0, 0, 1, 1, 1]
    assert {"question_id", "prompt", "response", "reward", "accuracy", "stop_reason"} <= rows[0].keys()
    assert all(len(turn) <= 24 and min(turn) >= 0 for row in rows for turn in row["entropies"])
    # Beyond the window of four tokens.
    assert max(len(turn) for row in rows for turn in row["entropies"]) > 4
    say_before_and_after(results)
    assert "Greedy accuracy on 3 held-out questions: 0.000 before, 0.000 after." in capsys.readouterr().out
