"""The table of data sets and their columns."""

from __future__ import annotations

import base64
import binascii
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rllib_arpo.envs.question import MATH, QA
from rllib_arpo.envs.tasks.answers import AnswerReader, after_hashes, ground_truth, last_boxed, texts
from rllib_arpo.envs.tasks.task import TEST, TRAIN

Messages = list[tuple[str, str]]


@dataclass(frozen=True, slots=True)
class Hub:
    """Where a data set is on the Hugging Face hub; `splits` maps "train" and "test" to its own names."""

    hub_id: str
    config: str | None = None
    splits: Mapping[str, str] = field(default_factory=lambda: {TRAIN: "train", TEST: "test"})


def plain(value: Any) -> Messages:
    """A question that is a string."""
    if not isinstance(value, str) or not value.strip():
        raise ValueError("has no text")
    return [("user", value)]


def chat_messages(value: Any) -> Messages:
    """A question that is a list of {role, content}."""
    if not isinstance(value, list) or not all(isinstance(message, dict) for message in value):
        raise ValueError("is not a list of {role, content}")
    messages = [(message.get("role"), message.get("content")) for message in value]
    if not all(isinstance(text, str) for message in messages for text in message):
        raise ValueError("has a message whose role or content is not a string")
    if not any(role == "user" and content.strip() for role, content in messages):
        raise ValueError("has no user message with text")
    return messages


def decrypted(row: dict[str, Any]) -> dict[str, Any]:
    """xbench's published rows are base64 of a text XORed with the row's `canary`; rows without one are plain."""
    canary = (row.get("canary") or "").encode()
    if not canary:
        return row
    return {**row, **{name: _xor(row[name], canary, name) for name in ("prompt", "answer") if row.get(name)}}


def _xor(text: str, key: bytes, name: str) -> str:
    try:
        data = base64.b64decode(text, validate=True)
        return bytes(byte ^ key[i % len(key)] for i, byte in enumerate(data)).decode()
    except (binascii.Error, UnicodeDecodeError, TypeError) as error:
        raise ValueError(f"`{name}` is not encrypted with the row's `canary`") from error


def unchanged(row: dict[str, Any]) -> dict[str, Any]:
    return row


@dataclass(frozen=True, kw_only=True, slots=True)
class DatasetSpec:
    """One data set.

    Attributes:
        question: columns that may hold the question; the task reads the first one that a row has.
        answers: column -> reader, likewise.
        aliases: columns with further right answers.
        read_question: column's value -> messages.
        ability: how answers are compared; None: the row's column `ability` states it.
        row_id: the column with the row's own name.
        tools: the model's tools by default.
        hub: its place on the hub.
        skip: column -> the reason why a row with a value in this column cannot be asked.
        decode: row -> row, before anything is read.
    """

    question: tuple[str, ...] = ("question", "problem")
    answers: Mapping[str, AnswerReader]
    aliases: tuple[str, ...] = ()
    read_question: Callable[[Any], Messages] = plain
    ability: str | None
    row_id: str | None = None
    tools: tuple[str, ...]
    hub: Hub | None = None
    skip: Mapping[str, str] = field(default_factory=dict)
    decode: Callable[[dict[str, Any]], dict[str, Any]] = unchanged

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns that are read."""
        own = ("ability",) if self.ability is None else ()
        row_id = (self.row_id,) if self.row_id else ()
        key = ("canary",) if self.decode is decrypted else ()
        names = (*self.question, *own, *self.answers, *self.aliases, *row_id, *key)
        return tuple(dict.fromkeys(names))


_CALCULATE, _LOOK_UP = ("python",), ("search", "python")
_ALIASES = {"golden_answers": texts, "answer": texts}
_BOXED = {"answer": texts, "solution": last_boxed}


def _flash_rag(config: str, splits: Mapping[str, str]) -> Hub:
    return Hub("RUC-NLPIR/FlashRAG_datasets", config, splits)


def _arpo(hub_id: str | None, ability: str | None = None) -> DatasetSpec:
    """The layout of the ARPO authors' training files; those of deep search leave the column `ability` empty."""
    return DatasetSpec(
        question=("prompt",),
        read_question=chat_messages,
        answers={"reward_model": ground_truth},
        ability=ability,
        tools=_LOOK_UP,
        hub=Hub(hub_id, splits={TRAIN: "train"}) if hub_id else None,
    )


#: Name of the task -> data set.
SPECS: dict[str, DatasetSpec] = {
    "gsm8k": DatasetSpec(
        answers={"answer": after_hashes}, ability=MATH, tools=_CALCULATE, hub=Hub("openai/gsm8k", "main")
    ),
    "math": DatasetSpec(
        answers=_BOXED, ability=MATH, tools=_CALCULATE, hub=Hub("DigitalLearningGmbH/MATH-lighteval", "default")
    ),
    "math500": DatasetSpec(
        answers=_BOXED,
        ability=MATH,
        row_id="unique_id",
        tools=_CALCULATE,
        hub=Hub("HuggingFaceH4/MATH-500", splits={TEST: "test"}),
    ),
    "aime24": DatasetSpec(
        answers=_BOXED,
        ability=MATH,
        row_id="id",
        tools=_CALCULATE,
        hub=Hub("HuggingFaceH4/aime_2024", splits={TEST: "train"}),
    ),
    "aime25": DatasetSpec(
        answers=_BOXED, ability=MATH, row_id="id", tools=_CALCULATE, hub=Hub("math-ai/aime25", splits={TEST: "test"})
    ),
    "hotpotqa": DatasetSpec(
        answers=_ALIASES,
        ability=QA,
        row_id="id",
        tools=_LOOK_UP,
        hub=Hub("hotpotqa/hotpot_qa", "distractor", {TRAIN: "train", TEST: "validation"}),
    ),
    "2wiki": DatasetSpec(
        answers=_ALIASES,
        ability=QA,
        row_id="id",
        tools=_LOOK_UP,
        hub=_flash_rag("2wikimultihopqa", {TRAIN: "train", TEST: "dev"}),
    ),
    "musique": DatasetSpec(
        answers=_ALIASES,
        aliases=("answer_aliases",),
        ability=QA,
        row_id="id",
        tools=_LOOK_UP,
        hub=_flash_rag("musique", {TRAIN: "train", TEST: "dev"}),
    ),
    "bamboogle": DatasetSpec(
        answers=_ALIASES, ability=QA, row_id="id", tools=_LOOK_UP, hub=_flash_rag("bamboogle", {TEST: "test"})
    ),
    "simpleqa": DatasetSpec(
        answers={"answer": texts}, ability=QA, tools=_LOOK_UP, hub=Hub("basicv8vc/SimpleQA", splits={TEST: "test"})
    ),
    "webwalker": DatasetSpec(
        question=("question", "Question"),
        answers={"answer": texts, "Answer": texts},
        ability=QA,
        tools=_LOOK_UP,
        hub=Hub("callanwu/WebWalkerQA", splits={TEST: "main"}),
    ),
    "gaia": DatasetSpec(
        question=("Question",),
        answers={"answer": texts, "Final answer": texts},
        ability=QA,
        row_id="task_id",
        tools=_LOOK_UP,
        hub=Hub("gaia-benchmark/GAIA", "2023_all", {TEST: "validation"}),
        skip={"file_name": "an attached file"},
    ),
    "hle": DatasetSpec(
        answers={"answer": texts},
        ability=QA,
        row_id="id",
        tools=_LOOK_UP,
        hub=Hub("cais/hle", splits={TEST: "test"}),
        skip={"image": "an image"},
    ),
    "xbench": DatasetSpec(
        question=("question", "prompt"),
        answers={"answer": texts},
        ability=QA,
        row_id="id",
        tools=_LOOK_UP,
        hub=Hub("xbench/DeepSearch", splits={TEST: "train"}),
        decode=decrypted,
    ),
    "qa": DatasetSpec(
        answers={"answer": texts, "answers": texts}, aliases=("answers",), ability=QA, row_id="id", tools=_LOOK_UP
    ),
    "arpo_mix": _arpo("dongguanting/ARPO-RL-Reasoning-10K"),
    "arpo_deepsearch": _arpo("dongguanting/ARPO-RL-DeepSearch-1K", QA),
    "parquet": _arpo(None),
}
