"""Keeps what the model said in every evaluation, and shows one question before and after training."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ray.rllib.callbacks.callbacks import RLlibCallback

from rllib_arpo.logging.trial_folder import trial_folder
from rllib_arpo.rollout.episodes import episode_to_tree, path_token_ids

if TYPE_CHECKING:
    from ray.tune import ResultGrid

    from rllib_arpo.arpo import ARPO
    from rllib_arpo.rollout.questions import SampledQuestion

#: File in the trial's folder; one line per evaluated question.
EVALUATIONS_FILE = "evaluations.jsonl"


class EvaluationTranscripts(RLlibCallback):
    """Evaluates once before the first iteration and writes every evaluation's transcripts to `EVALUATIONS_FILE`.

    A row's "evaluation" counts from 0, the one before the first iteration.
    """

    def __init__(self) -> None:
        super().__init__()
        self._num_evaluations = 0

    def on_algorithm_init(self, *, algorithm: ARPO, **_kwargs: Any) -> None:
        algorithm.evaluate()

    def on_evaluate_end(self, *, algorithm: ARPO, **_kwargs: Any) -> None:
        from transformers import AutoTokenizer

        tokenizer = AutoTokenizer.from_pretrained(algorithm.config.model_name_or_path)
        with (trial_folder(algorithm) / EVALUATIONS_FILE).open("a") as file:
            for sampled in algorithm.last_evaluation:
                row = {"evaluation": self._num_evaluations, **transcript(sampled, tokenizer)}
                file.write(json.dumps(row) + "\n")
        self._num_evaluations += 1


def transcript(sampled: SampledQuestion, tokenizer: Any) -> dict[str, Any]:
    """The first trajectory of a question as text: what it was asked, what it and the tools wrote, how it ended."""
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


def print_before_and_after(results: ResultGrid) -> None:
    """Prints the accuracy of the first and the last evaluation of a Tune run, and one question's two transcripts.

    The question shown is the first one that the model failed before and solves now; without one, the first.
    """
    path = Path(results[0].path) / EVALUATIONS_FILE
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    if rows[0]["evaluation"] == rows[-1]["evaluation"]:
        print(f"\nThe run ended before its first evaluation in training; the one before it is in {path}")
        return
    before, after = (_by_question(rows, pick(row["evaluation"] for row in rows)) for pick in (min, max))
    shown = next((q for q in before if before[q]["accuracy"] < after[q]["accuracy"]), next(iter(before)))
    print(f"\nHeld-out question {shown}: {_last_lines(before[shown]['prompt'])}")
    for name, answers in (("before", before), ("after", after)):
        row = answers[shown]
        print(f"\n--- {name} training: reward {row['reward']:g}, ended by {row['stop_reason']}\n{row['response']}")
    accuracies = [sum(row["accuracy"] for row in rows.values()) / len(rows) for rows in (before, after)]
    print(
        f"\nGreedy accuracy on {len(before)} held-out questions: {accuracies[0]:.3f} before, {accuracies[1]:.3f} after."
    )
    print(f"All transcripts: {path}")


def _by_question(rows: list[dict[str, Any]], evaluation: int) -> dict[str, dict[str, Any]]:
    return {row["question_id"]: row for row in rows if row["evaluation"] == evaluation}


def _last_lines(prompt: str, count: int = 3) -> str:
    """The end of the prompt: the question itself stands after the instructions and the examples."""
    return "\n".join(prompt.strip().splitlines()[-count:])
