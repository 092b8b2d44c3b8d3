"""Evaluates before the first iteration, and shows one question before and after training, from the run's record."""

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
    """Evaluates once before the first iteration; the record keeps this evaluation as it keeps those that follow.

    A run that is resumed in the same folder is not evaluated before it goes on.
    """

    def on_algorithm_init(self, *, algorithm: ARPO, **_kwargs: Any) -> None:
        if not any((trial_folder(algorithm) / RECORD_FOLDER).glob(f"{EVALUATION}-*.parquet")):
            algorithm.messages.add(evaluation_line(algorithm.evaluate()))


def evaluation_files(trial: Path) -> list[RecordFile]:
    """The evaluations in the record of a trial, the first one first; none without a record."""
    folder = trial / RECORD_FOLDER
    files = record_files(folder) if any(folder.glob("*.parquet")) else []
    return [file for file in files if file.path.name.startswith(EVALUATION)]


def say_before_and_after(results: ResultGrid) -> None:
    """Says the accuracy of the first and the last evaluation of a Tune run, and one question's two transcripts.

    It shows the first question that the model failed before and solves now, or the first question if there is none.
    """
    trial = Path(results[0].path)
    files = evaluation_files(trial)
    if not files:
        say("\nThe run kept no record of its evaluations (record_share=None), so that there is nothing to compare.")
        return
    if len(files) == 1:
        path = short_path(files[0].path)
        say(f"\nThe run ended before its first evaluation in training; the one before it is in {path}")
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
    """Of the first trajectory."""
    return question.tree.trajectories[0].accuracy


def _response(question: RecordedQuestion) -> str:
    """The text of model and tools in the first trajectory."""
    pieces: list[str] = []
    for placed in question.turns_of(question.tree.trajectories[0]):
        begun = words.new_context(placed)
        pieces += [placed.text.text or "", f"\n[{begun}]\n" if begun else "", placed.text.tool_output or ""]
    return "".join(pieces)


def last_lines(prompt: str) -> str:
    """The end of the prompt, which holds the question itself, after the instructions and the examples."""
    return "\n".join(prompt.strip().splitlines()[-3:])
