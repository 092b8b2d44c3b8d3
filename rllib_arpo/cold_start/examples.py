"""The examples of a cold start as token ids with labels: from transcripts, or the best trajectories of a run's record.

A row of transcripts (JSON lines or parquet) is

    {"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]}

whose assistant texts hold tool calls and, in `<result>...</result>`, what the tools answered. The model writes the
assistant's text and the end-of-turn token, without the `<result>` blocks and the white space around them.

The best of a record (rejection sampling, best of n; "RFT", arXiv 2308.01825) keep their tokens as they were sampled:
nothing is rendered or tokenised again. In both cases the loss covers what the model generated.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rllib_arpo.core.tree import QuestionTree
from rllib_arpo.envs.errors import DataError
from rllib_arpo.envs.support.data_files import check_unicode
from rllib_arpo.envs.tasks.rows import all_rows, open_file
from rllib_arpo.record.question import RecordedQuestion
from rllib_arpo.record.read import questions, record_files
from rllib_arpo.record.schema import TRAINING

#: The label of a token without a loss (PyTorch's `ignore_index`).
IGNORED = -100

_RESULT_TAG = re.compile(r"</?result>")
# The environment also writes the white space around a block.
_RESULT_BLOCK = re.compile(r"(\s*<result>.*?</result>\s*)", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of a transcript; `generated` tells whether the model writes it itself."""

    text: str
    generated: bool


def read_transcripts(path: str | Path) -> dict[str, list[dict[str, str]]]:
    """The `messages` of every row of a .jsonl, .json or .parquet file, checked, by the place of the row.

    Raises:
        DataError: there is no such file, or a row is not a transcript; rows are counted from 0.
    """
    rows = all_rows(open_file(str(path)), ("messages",))
    transcripts = {(place := f"{path}, row {number}"): _checked_messages(row, place) for number, row in rows}
    if not transcripts:
        raise DataError(f"{path} has no rows.")
    return transcripts


def _checked_messages(row: Any, place: str) -> list[dict[str, str]]:
    """The row's messages; `place` begins the error message."""
    messages = row.get("messages") if isinstance(row, dict) else None
    if not isinstance(messages, list) or not messages:
        raise DataError(f'{place}: a row is {{"messages": [...]}} with at least one message.')
    for message in messages:
        if not isinstance(message, dict) or not all(isinstance(message.get(key), str) for key in ("role", "content")):
            raise DataError(f"{place}: every message has a role and a content, both text.")
    if messages[-1]["role"] != "assistant":
        raise DataError(f"{place}: the last message must be the assistant's, not the {messages[-1]['role']}'s.")
    for message in messages:
        if message["role"] == "assistant" and _RESULT_TAG.search(_RESULT_BLOCK.sub("", message["content"])):
            raise DataError(f"{place}: a <result> or </result> tag of the assistant's text has no partner.")
    return [{"role": message["role"], "content": message["content"]} for message in messages]


def split_transcript(tokenizer: Any, messages: list[dict[str, str]]) -> list[Segment]:
    """Cuts a transcript into the text that the model writes and the text that it reads.

    Chat templates may change an assistant's text (Qwen3's drops everything before the last `</think>`), while in a
    rollout the model's tokens stay as they are. So the template renders markers in place of the assistant's texts, and
    the last answer follows the template's generation prompt, as it does in a rollout.

    Raises:
        ValueError: the tokenizer's chat template cannot be used in this way, or a text is not Unicode.
        TemplateError: the chat template refuses these messages.
    """
    check_unicode(*(message["content"] for message in messages))
    if tokenizer.chat_template is None or tokenizer.eos_token is None:
        raise ValueError(f"The tokenizer of {tokenizer.name_or_path} needs a chat template and an end-of-turn token.")
    answers = {f"\ue000{i}\ue001": m["content"] for i, m in enumerate(messages) if m["role"] == "assistant"}
    marked = [
        {"role": m["role"], "content": f"\ue000{i}\ue001" if m["role"] == "assistant" else m["content"]}
        for i, m in enumerate(messages)
    ]
    rendered = tokenizer.apply_chat_template(marked[:-1], tokenize=False, add_generation_prompt=True)
    rendered += marked[-1]["content"] + tokenizer.eos_token

    segments: list[Segment] = []
    for marker, answer in answers.items():
        given, found, rendered = rendered.partition(marker)
        if not found or not rendered.startswith(tokenizer.eos_token):
            raise ValueError(
                f"The chat template of {tokenizer.name_or_path} does not end the assistant's messages with the "
                f"end-of-turn token {tokenizer.eos_token!r}, so what the model writes cannot be told apart."
            )
        rendered = rendered.removeprefix(tokenizer.eos_token)
        # With a capturing group, `split` alternates between the text outside of the blocks and the blocks.
        pieces = [Segment(text, i % 2 == 0) for i, text in enumerate(_RESULT_BLOCK.split(answer))]
        segments += [Segment(given, False), *pieces, Segment(tokenizer.eos_token, True)]
    return [segment for segment in segments if segment.text]


def tokenize_transcript(tokenizer: Any, messages: list[dict[str, str]]) -> dict[str, list[int]]:
    """`input_ids` and `labels`, both [t]; labels are `IGNORED` on every token that the model did not write.

    Segments are tokenized one by one, as a rollout does: no token straddles the end of a tool call, where a tokenizer
    would merge `</search>` and `<result>` into pieces that no stop string ever matches.
    """
    input_ids: list[int] = []
    labels: list[int] = []
    for segment in split_transcript(tokenizer, messages):
        ids = tokenizer(segment.text, add_special_tokens=False)["input_ids"]
        input_ids += ids
        labels += ids if segment.generated else [IGNORED] * len(ids)
    return {"input_ids": input_ids, "labels": labels}


def load_examples(tokenizer: Any, path: str | Path, max_length: int) -> list[dict[str, list[int]]]:
    """The tokenized transcripts of a file; drops those of more than `max_length` tokens and prints their number.

    A transcript is never cut: its end is the answer, which the model is to learn.

    Raises:
        DataError: a row is not a transcript for this tokenizer, or all are too long.
    """
    from jinja2 import TemplateError

    examples = []
    for place, messages in read_transcripts(path).items():
        try:
            examples.append(tokenize_transcript(tokenizer, messages))
        except (ValueError, TemplateError) as error:
            raise DataError(f"{place}: {error}") from error
    kept = [example for example in examples if len(example["input_ids"]) <= max_length]
    if not kept:
        raise DataError(f"{path}: every transcript is longer than {max_length} tokens; raise --max-length.")
    if len(kept) < len(examples):
        left_out = len(examples) - len(kept)
        print(f"{left_out} of {len(examples)} transcripts are longer than {max_length} tokens and are left out.")
    return kept


Example = dict[str, list[int]]


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
