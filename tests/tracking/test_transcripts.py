"""The evaluation before the first iteration: a resumed run has it already."""

from types import SimpleNamespace

from rllib_arpo.tracking.transcripts import EvaluationTranscripts


def test_a_resumed_run_is_not_evaluated_before_it_goes_on(tmp_path):
    evaluated = []
    run = SimpleNamespace(_storage=None, logdir=str(tmp_path), messages=set())
    run.evaluate = lambda: evaluated.append(1) or {}
    EvaluationTranscripts().on_algorithm_init(algorithm=run)
    assert evaluated == [1]
    (tmp_path / "trees").mkdir()
    (tmp_path / "trees" / "evaluation-00000.parquet").write_text("")
    EvaluationTranscripts().on_algorithm_init(algorithm=run)
    assert evaluated == [1]
