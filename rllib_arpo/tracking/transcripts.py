"""Keeps the transcripts of every evaluation, and shows one question before and after training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ray.rllib.callbacks.callbacks import RLlibCallback

from rllib_arpo.engine.engine import ALL
from rllib_arpo.rollout.episodes import episode_to_tree, path_token_ids
from rllib_arpo.terminal import say
from rllib_arpo.tracking.trial_folder import trial_folder

if TYPE_CHECKING:
    from ray.tune import ResultGrid

    from rllib_arpo.arpo import ARPO
    from rllib_arpo.rollout.messages import SampledQuestion

#: File in the trial's folder; one line per evaluated question.
EVALUATIONS_FILE = "evaluations.jsonl"


class EvaluationTranscripts(RLlibCallback):
    """Evaluates once before the first iteration and writes every evaluation's transcripts to `EVALUATIONS_FILE`.

    A row's "evaluation" counts from 0, the one before the first iteration. A run that is resumed in the same folder
    goes on counting, and is not evaluated before it goes on. With `record_entropies="all"` a row has the "entropies"
    of every turn.
    """

    def on_algorithm_init(self, *, algorithm: ARPO, **_kwargs: Any) -> None:
        if not _num_evaluations(trial_folder(algorithm) / EVALUATIONS_FILE):
            algorithm.evaluate()

    def on_evaluate_end(self, *, algorithm: ARPO, **_kwargs: Any) -> None:
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(algorithm.config.model_name_or_path)
        path = trial_folder(algorithm) / EVALUATIONS_FILE
        number, lines = _num_evaluations(path), []
        for sampled in algorithm.last_evaluation:
            row = {"evaluation": number, **transcript(sampled, tokenizer)}
            if algorithm.config.record_entropies == ALL:
                row["entropies"] = entropies(sampled)
            lines.append(json.dumps(row) + "\n")
        with path.open("a") as file:
            file.write("".join(lines))


def read_evaluations(path: Path) -> list[dict[str, Any]]:
    """The rows of an `EVALUATIONS_FILE`.

    Raises:
        ValueError: a row is not JSON; rows are counted from 1.
    """
    rows = []
    for number, line in enumerate(path.read_text().splitlines(), 1):
        try:
            rows.append(json.loads(line))
        except json.JSONDecodeError as error:
            raise ValueError(f"{path}, row {number}: is not JSON ({error.msg}).") from None
    return rows


def _num_evaluations(path: Path) -> int:
    """The number of the next evaluation; 0 where there is none yet."""
    return max((row["evaluation"] for row in read_evaluations(path)), default=-1) + 1 if path.is_file() else 0


def transcript(sampled: SampledQuestion, tokenizer: Any) -> dict[str, Any]:
    """The first trajectory of a question as text: the question, the texts of model and tools, and the ending."""
    tree = episode_to_tree(sampled.episode)
    first = tree.trajectories[0]
    response = path_token_ids(tree, first.agent_id)[len(tree.prompt) :]
    return {
        "question_id": tree.question_id,
        "prompt": tokenizer.decode(tree.prompt),
        "response": tokenizer.decode(response),
        "reward": first.reward,
        "accuracy": first.accuracy,
        "stop_reason": str(first.stop_reason),
    }


def entropies(sampled: SampledQuestion) -> list[list[float]]:
    """The entropies in nats of the tokens that a question's first trajectory generated, turn by turn."""
    return [turn.entropies.tolist() for turn in episode_to_tree(sampled.episode).trajectories[0].turns]


def say_before_and_after(results: ResultGrid) -> None:
    """Says the accuracy of the first and the last evaluation of a Tune run, and one question's two transcripts.

    It shows the first question that the model failed before and solves now, or the first question if there is none.
    """
    path = Path(results[0].path) / EVALUATIONS_FILE
    rows = read_evaluations(path)
    if rows[0]["evaluation"] == rows[-1]["evaluation"]:
        say(f"\nThe run ended before its first evaluation in training; the one before it is in {path}")
        return
    before, after = (_by_question(rows, pick(row["evaluation"] for row in rows)) for pick in (min, max))
    shown = next((q for q in before if before[q]["accuracy"] < after[q]["accuracy"]), next(iter(before)))
    say(f"\nHeld-out question {shown}: {last_lines(before[shown]['prompt'])}")
    for name, answers in (("before", before), ("after", after)):
        row = answers[shown]
        say(f"\n--- {name} training: reward {row['reward']:g}, ended by {row['stop_reason']}\n{row['response']}")
    accuracies = [sum(row["accuracy"] for row in rows.values()) / len(rows) for rows in (before, after)]
    say(
        f"\nGreedy accuracy on {len(before)} held-out questions: {accuracies[0]:.3f} before, {accuracies[1]:.3f} after."
    )
    say(f"All transcripts: {path}")


def _by_question(rows: list[dict[str, Any]], evaluation: int) -> dict[str, dict[str, Any]]:
    return {row["question_id"]: row for row in rows if row["evaluation"] == evaluation}


def last_lines(prompt: str, count: int = 3) -> str:
    """The end of the prompt, which holds the question itself, after the instructions and the examples."""
    return "\n".join(prompt.strip().splitlines()[-count:])
