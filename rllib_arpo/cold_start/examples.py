"""The examples of a cold start: transcripts as token ids, with labels on what the model learns to write."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rllib_arpo.cold_start.transcripts import (
    Transcript,
    ends_without_answer,
    read_transcripts,
    split_transcript,
)
from rllib_arpo.envs.errors import DataError, ToolError
from rllib_arpo.envs.protocols.prompts import Chat

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
        ids = (chat.encode(segment.text, input_ids) if input_ids else chat.encode_prompt(segment.text)).tolist()
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

    A transcript is never cut: its end is the answer, which the model is to learn. It also prints how many end without
    an answer that the protocol reads.

    Raises:
        DataError: a row is not a transcript for this tokenizer and protocol, or all are too long.
    """
    from jinja2 import TemplateError

    chat, examples, unanswered = Chat(tokenizer, template_kwargs or {}), [], 0
    for place, transcript in read_transcripts(path).items():
        try:
            examples.append(tokenize_transcript(chat, transcript, protocol))
            unanswered += ends_without_answer(chat, transcript, protocol)
        except (ValueError, ToolError, TemplateError) as error:
            raise DataError(f"{place}: {error}") from error
    kept = [example for example in examples if len(example["input_ids"]) <= max_length]
    if not kept:
        raise DataError(f"{path}: every transcript is longer than {max_length} tokens; raise --max-length.")
    if len(kept) < len(examples):
        left_out = len(examples) - len(kept)
        print(f"{left_out} of {len(examples)} transcripts are longer than {max_length} tokens and are left out.")
    if unanswered:
        print(
            f"{unanswered} of {len(examples)} transcripts end without an answer that the protocol {protocol!r} reads."
        )
    return kept
