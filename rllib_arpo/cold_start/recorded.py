"""The best trajectories of a run's record as examples: rejection sampling (best of n; "RFT", arXiv 2308.01825).

Tokens stay as they were sampled: nothing is rendered or tokenised again. The loss covers what the model generated.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from rllib_arpo.cold_start.transcripts import IGNORED
from rllib_arpo.envs.errors import DataError
from rllib_arpo.record.read import Question, Trajectory, questions, record_files
from rllib_arpo.record.schema import TRAINING


def load_recorded(
    place: str | Path, best: int, min_reward: float, max_length: int, vocab_size: int
) -> list[dict[str, list[int]]]:
    """`input_ids` and `labels`, both [t], of the best trajectories of each question that was trained on.

    Trajectories of all iterations compete; equal ones count once, and masked ones not at all.

    Args:
        place: a file of the record, or a folder above (`RUN/trees`).
        best: trajectories of a question, at most; of equal rewards the earlier one wins.
        min_reward: a trajectory with less is left out.
        max_length: longer trajectories (in tokens) are left out.
        vocab_size: of the model that learns from them.

    Raises:
        DataError: there is no such record, no trajectory is left, or the record is of another vocabulary.
    """
    try:
        found = [one for file in record_files(place) for one in _trajectories(questions(file), min_reward)]
    except ValueError as error:
        raise DataError(str(error)) from error
    by_question: dict[str, dict[tuple[int, ...], tuple[float, dict[str, list[int]]]]] = {}
    for question_id, reward, example in found:
        if len(example["input_ids"]) <= max_length:
            by_question.setdefault(question_id, {}).setdefault(tuple(example["input_ids"]), (reward, example))
    examples = [
        example
        for distinct in by_question.values()
        for _, example in sorted(distinct.values(), key=lambda scored: -scored[0])[:best]
    ]
    if not examples:
        raise DataError(f"{place}: no trajectory has a reward of {min_reward:g} and at most {max_length} tokens.")
    largest = max(max(example["input_ids"]) for example in examples)
    if largest >= vocab_size:
        raise DataError(f"{place}: it has the token id {largest}; the model has 0 to {vocab_size - 1}.")
    print(f"{len(examples)} trajectories of {len(by_question)} questions, of {len(found)} that earned enough.")
    return examples


def _trajectories(asked: Iterator[Question], min_reward: float) -> Iterator[tuple[str, float, dict[str, list[int]]]]:
    """(question id, reward, example) of each trajectory of training that earned enough."""
    for question in asked:
        if question.row["purpose"] != TRAINING:
            continue
        for trajectory in question.trajectories:
            if trajectory.row["counts"] and trajectory.row["reward"] >= min_reward:
                yield question.row["question_id"], trajectory.row["reward"], _example(question, trajectory)


def _example(question: Question, trajectory: Trajectory) -> dict[str, list[int]]:
    input_ids = list(question.row["prompt_ids"])
    labels = [IGNORED] * len(input_ids)
    for turn in question.path(trajectory):
        read = list(turn["tool_output_ids"] or ())
        input_ids += [*turn["token_ids"], *read]
        labels += [*turn["token_ids"], *[IGNORED] * len(read)]
    return {"input_ids": input_ids, "labels": labels}
