"""Evaluates before the first iteration, and shows a question before and after training, from the run's record."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from ray.rllib.callbacks.callbacks import RLlibCallback

from rllib_arpo.record.question import RecordedQuestion
from rllib_arpo.record.read import RecordFile, questions, record_files
from rllib_arpo.record.recorder import RECORD_FOLDER, trial_folder
from rllib_arpo.record.schema import EVALUATION
from rllib_arpo.show import words
from rllib_arpo.terminal import say, short_path
from rllib_arpo.tracking.console import evaluation_line

if TYPE_CHECKING:
    from ray.tune import ResultGrid

    from rllib_arpo.arpo import ARPO


class EvaluationTranscripts(RLlibCallback):
    """Evaluates once before the first iteration. The record keeps this evaluation like the later ones.

    A run that is resumed in the same folder already has this evaluation, and does not repeat it.
    """

    def on_algorithm_init(self, *, algorithm: ARPO, **_kwargs: Any) -> None:
        if not any((trial_folder(algorithm) / RECORD_FOLDER).glob(f"{EVALUATION}-*.parquet")):
            algorithm.messages.add(evaluation_line(algorithm.evaluate()))


def evaluation_files(trial: Path) -> list[RecordFile]:
    """The files of the evaluations in a trial's record, in order; empty without a record."""
    folder = trial / RECORD_FOLDER
    files = record_files(folder) if any(folder.glob("*.parquet")) else []
    return [file for file in files if file.path.name.startswith(EVALUATION)]


def say_before_and_after(results: ResultGrid) -> None:
    """Prints the accuracies of a Tune run's first and last evaluation, and the transcripts of a question in both.

    This is the first question on which the model has improved, otherwise the first question.
    """
    trial = Path(results[0].path)
    files = evaluation_files(trial)
    if not files:
        say("\nThe run kept no record of its evaluations (record_share=None), so there is nothing to compare.")
        return
    if len(files) == 1:
        path = short_path(files[0].path)
        say(f"\nThe run ended before its first evaluation in training; the evaluation before training is in {path}")
        return
    before, after = ({q.tree.question_id: q for q in questions(file)} for file in (files[0], files[-1]))
    both = [name for name in before if name in after]
    improved = (name for name in both if _accuracy(before[name]) < _accuracy(after[name]))
    shown = next(improved, next(iter(both)))
    say(f"\nHeld-out question {shown}: {last_lines(before[shown].prompt_text or '')}")
    for name, answers in (("before", before), ("after", after)):
        tree, response = answers[shown].tree, _response(answers[shown])
        reward, reason = tree.returns()[0], tree.trajectories[0].stop_reason
        say(f"\n--- {name} training: reward {reward:g}, ended by {reason}\n{response}")
    accuracies = [sum(map(_accuracy, found.values())) / len(found) for found in (before, after)]
    say(
        f"\nGreedy accuracy on {len(before)} held-out questions: {accuracies[0]:.3f} before, {accuracies[1]:.3f} after."
    )
    say(f"All transcripts: rllib-arpo show {short_path(trial)}")


def _accuracy(question: RecordedQuestion) -> float:
    """The accuracy of the first trajectory."""
    return question.tree.trajectories[0].accuracy


def _response(question: RecordedQuestion) -> str:
    """The texts of model and tools in the first trajectory."""
    pieces: list[str] = []
    for placed in question.turns_of(question.tree.trajectories[0]):
        begun = words.new_context(placed)
        pieces += [placed.text.text or "", f"\n[{begun}]\n" if begun else "", placed.text.tool_output or ""]
    return "".join(pieces)


def last_lines(prompt: str) -> str:
    """The end of the prompt, where the question is; instructions and examples precede it."""
    return "\n".join(prompt.strip().splitlines()[-3:])
