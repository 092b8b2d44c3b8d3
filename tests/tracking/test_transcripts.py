"""Numbers of evaluations: a resumed run goes on counting where its file ends."""

from __future__ import annotations

import json
from types import SimpleNamespace

import pytest

from rllib_arpo.rollout.episodes import tree_to_episode
from rllib_arpo.tracking.transcripts import EVALUATIONS_FILE, EvaluationTranscripts, read_evaluations
from tests.helpers.trees import make_trajectory, make_tree, make_turn


class Run:
    """What the callback reads of an algorithm; it answers two questions in every evaluation."""

    def __init__(self, folder, model: str):
        self._storage, self.logdir = None, str(folder)
        self.config = SimpleNamespace(model_name_or_path=model, record_entropies="windows")
        trees = [make_tree([65], [make_trajectory("0", [make_turn([66])])], name) for name in ("a", "b")]
        self.last_evaluation = [SimpleNamespace(episode=tree_to_episode(tree)) for tree in trees]
        self.callback = EvaluationTranscripts()
        self.callback.on_algorithm_init(algorithm=self)

    def evaluate(self) -> None:
        self.callback.on_evaluate_end(algorithm=self)


def numbers(folder) -> list[int]:
    return [row["evaluation"] for row in read_evaluations(folder / EVALUATIONS_FILE)]


def test_a_resumed_run_goes_on_counting_and_is_not_evaluated_first(model_folder, tmp_path):
    run = Run(tmp_path, model_folder)
    assert numbers(tmp_path) == [0, 0]
    run.evaluate()
    assert numbers(tmp_path) == [0, 0, 1, 1]
    resumed = Run(tmp_path, model_folder)
    assert numbers(tmp_path) == [0, 0, 1, 1]
    resumed.evaluate()
    assert numbers(tmp_path) == [0, 0, 1, 1, 2, 2]


def test_a_row_that_was_not_finished_is_named(tmp_path):
    path = tmp_path / EVALUATIONS_FILE
    path.write_text(json.dumps({"evaluation": 0}) + '\n{"evaluation": 1, "prom')
    with pytest.raises(ValueError, match=r"evaluations\.jsonl, row 2: is not JSON \(Unterminated string"):
        read_evaluations(path)
