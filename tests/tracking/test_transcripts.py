"""The evaluation before the first iteration, and the end of a run that compares it with the last."""

from types import SimpleNamespace

from rllib_arpo.tracking.transcripts import EvaluationTranscripts, say_before_and_after
from tests.record.trees import TREE
from tests.show.conftest import write_record


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


def test_a_run_ends_with_a_question_before_and_after(tmp_path, model_folder, capsys):
    """Where there is one evaluation or none, it says so."""

    def said() -> list[str]:
        say_before_and_after([SimpleNamespace(path=str(tmp_path))])
        return capsys.readouterr().out.splitlines()

    assert said()[1].startswith("The run kept no record of its evaluations (record_share=None)")
    write_record(tmp_path, model_folder, [TREE])
    assert said() == [
        "",
        "Held-out question lamps: Q?",
        "",
        "--- before training: reward 1, ended by answer",
        "<s>é12A",
        "",
        "--- after training: reward 1, ended by answer",
        "<s>é12A",
        "",
        "Greedy accuracy on 1 held-out questions: 1.000 before, 1.000 after.",
        f"All transcripts: rllib-arpo show {tmp_path}",
    ]
    (tmp_path / "trees" / "evaluation-00003.parquet").unlink()
    assert said()[1] == (
        "The run ended before its first evaluation in training; the evaluation before training is in "
        f"{tmp_path}/trees/evaluation-00000.parquet"
    )
