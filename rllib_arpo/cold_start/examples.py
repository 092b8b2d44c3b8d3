"""The examples of a cold start as token ids with labels: from transcripts, or the best trajectories of a run's record.

The best of a record (rejection sampling, best of n; "RFT", arXiv 2308.01825) keep their tokens as they were sampled:
nothing is rendered or tokenised again. In both cases the loss covers what the model generated.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rllib_arpo.cold_start.transcripts import Transcript, read_transcripts, split_transcript
from rllib_arpo.core.tree import QuestionTree
from rllib_arpo.envs.errors import DataError, ToolError
from rllib_arpo.envs.protocols.prompts import Chat
from rllib_arpo.record.question import RecordedQuestion
from rllib_arpo.record.read import questions, record_files
from rllib_arpo.record.schema import TRAINING

#: The label of a token without a loss (PyTorch's `ignore_index`).
IGNORED = -100

Example = dict[str, list[int]]


def tokenize_transcript(chat: Chat, transcript: Transcript, protocol: str | None = None) -> Example:
    """`input_ids` and `labels`, both [t]; labels are `IGNORED` on every token that the model does not learn to write.

    Segments are tokenized one by one, as a rollout does: no token straddles the end of a tool call, where a tokenizer
    would merge `</search>` and `<result>` into pieces that no stop string ever matches.
    """
    input_ids: list[int] = []
    labels: list[int] = []
    for segment in split_transcript(chat, transcript, protocol):
        encode = chat.encode if input_ids else chat.encode_prompt
        ids = encode(segment.text).tolist()
        input_ids += ids
        labels += ids if segment.generated else [IGNORED] * len(ids)
    if set(labels) == {IGNORED}:
        raise ValueError("every message of the assistant has the weight 0.")
    return {"input_ids": input_ids, "labels": labels}


def load_examples(
    tokenizer: Any,
    path: str | Path,
    max_length: int,
    protocol: str | None = None,
    template_kwargs: Mapping[str, Any] | None = None,
) -> list[Example]:
    """The tokenized transcripts of a file; drops those of more than `max_length` tokens and prints their number.

    A transcript is never cut: its end is the answer, which the model is to learn.

    Raises:
        DataError: a row is not a transcript for this tokenizer and protocol, or all are too long.
    """
    from jinja2 import TemplateError

    chat, examples = Chat(tokenizer, template_kwargs or {}), []
    for place, transcript in read_transcripts(path).items():
        try:
            examples.append(tokenize_transcript(chat, transcript, protocol))
        except (ValueError, ToolError, TemplateError) as error:
            raise DataError(f"{place}: {error}") from error
    kept = [example for example in examples if len(example["input_ids"]) <= max_length]
    if not kept:
        raise DataError(f"{path}: every transcript is longer than {max_length} tokens; raise --max-length.")
    if len(kept) < len(examples):
        left_out = len(examples) - len(kept)
        print(f"{left_out} of {len(examples)} transcripts are longer than {max_length} tokens and are left out.")
    return kept


def load_recorded(place: str | Path, best: int, min_reward: float, max_length: int, vocab_size: int) -> list[Example]:
    """`input_ids` and `labels`, both [t], of the best trajectories of each question that was trained on.

    Trajectories of all iterations compete; equal ones count once, and masked ones not at all.

    Args:
        place: a file of the record, or a folder above (`RUN/trees`).
        best: trajectories of a question, at most; of equal rewards the earlier one wins.
        min_reward: a trajectory with less is left out.
        max_length: trajectories that are longer (in tokens, of their longest conversation) are left out.
        vocab_size: of the model that learns from them.

    Raises:
        DataError: there is no such record, no trajectory is left, or the record is of another vocabulary.
    """
    try:
        found = [one for file in record_files(place) for one in _trajectories(questions(file), min_reward)]
    except ValueError as error:
        raise DataError(str(error)) from error
    by_question: dict[str, dict[tuple[tuple[int, ...], ...], tuple[float, list[Example]]]] = {}
    for question_id, reward, own in found:
        ids = tuple(tuple(example["input_ids"]) for example in own)
        if max(map(len, ids)) <= max_length:
            by_question.setdefault(question_id, {}).setdefault(ids, (reward, own))
    chosen = [
        own
        for distinct in by_question.values()
        for _, own in sorted(distinct.values(), key=lambda scored: -scored[0])[:best]
    ]
    examples = [example for own in chosen for example in own]
    if not examples:
        raise DataError(f"{place}: no trajectory has a reward of {min_reward:g} and at most {max_length} tokens.")
    largest = max(max(example["input_ids"]) for example in examples)
    if largest >= vocab_size:
        raise DataError(f"{place}: it has the token id {largest}; the model has 0 to {vocab_size - 1}.")
    print(f"{len(chosen)} trajectories of {len(by_question)} questions, of {len(found)} that earned enough.")
    return examples


def _trajectories(asked: Iterator[RecordedQuestion], min_reward: float) -> Iterator[tuple[str, float, list[Example]]]:
    """(question id, reward, examples) of each trajectory of training that earned enough."""
    for question in asked:
        if question.facts.purpose != TRAINING:
            continue
        tree = question.tree
        for trajectory, reward in zip(tree.trajectories, tree.returns(), strict=True):
            if trajectory.counts and reward >= min_reward:
                yield tree.question_id, float(reward), _examples(tree, trajectory.agent_id)


def _examples(tree: QuestionTree, agent_id: str) -> list[Example]:
    """The contexts of a trajectory, mostly one. What the model wrote is in the loss of the first that has it."""
    input_ids = tree.prompt.tolist()
    labels = [IGNORED] * len(input_ids)
    left: list[Example] = []
    for turn in tree.path(agent_id):
        generated, read = turn.token_ids.tolist(), turn.observation.tolist()
        input_ids, labels = [*input_ids, *generated], [*labels, *generated]
        if turn.new_context:
            left.append({"input_ids": input_ids, "labels": labels})
            input_ids, labels = [], []
        input_ids, labels = [*input_ids, *read], [*labels, *[IGNORED] * len(read)]
    return [one for one in (*left, {"input_ids": input_ids, "labels": labels}) if set(one["labels"]) != {IGNORED}]
