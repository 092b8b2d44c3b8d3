"""The table of data sets, and the readers of their columns, which raise a ValueError that says what is wrong."""

from __future__ import annotations

import base64
import binascii
import math
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from rllib_arpo.envs.question import MATH, QA
from rllib_arpo.envs.support.boxes import boxes, has_box, hashed, listed
from rllib_arpo.envs.tasks.task import TEST, TRAIN

Messages = list[tuple[str, str]]
ANSWER_SEPARATOR = "<|answer_split|>"

AnswerReader = Callable[[Any], tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Hub:
    """The address of a data set on the Hugging Face hub; `splits` maps "train" and "test" to its own names."""

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


def text_or_messages(value: Any) -> Messages:
    """A question that is either."""
    return plain(value) if isinstance(value, str) else chat_messages(value)


def texts(value: Any) -> tuple[str, ...]:
    """A string or a number, or a list of them: each is a right answer."""
    values = value if isinstance(value, list | tuple) else [value]
    if not all(isinstance(one, str | int | float) and not isinstance(one, bool) for one in values if one is not None):
        raise ValueError("must be a string, a number, or a list of them")
    if any(isinstance(one, float) and not math.isfinite(one) for one in values):
        raise ValueError("has a number that is not finite")
    whole = (int(one) if isinstance(one, float) and one.is_integer() else one for one in values)
    return _distinct(str(one) for one in whole if one is not None)


def after_hashes(value: Any) -> tuple[str, ...]:
    """GSM8K: a worked solution that ends with "#### 1,234"."""
    found = hashed(value) if isinstance(value, str) else None
    if found is None:
        raise ValueError("does not end with '#### answer'")
    return (found,)


def last_boxed(value: Any) -> tuple[str, ...]:
    """MATH: a worked solution; what its last box holds is the answer."""
    held = boxes(value) if isinstance(value, str) else []
    if not held:
        unread = isinstance(value, str) and has_box(value)
        raise ValueError("has a \\boxed{} that is empty or not closed" if unread else "has no \\boxed{}")
    return (held[-1],)


def ground_truth(value: Any) -> tuple[str, ...]:
    """The ARPO authors' `reward_model`: its `ground_truth`, answers separated by `<|answer_split|>`, or a list."""
    if not isinstance(value, dict):
        raise ValueError("is not an object with a `ground_truth`")
    truth = value.get("ground_truth")
    return _distinct(truth.split(ANSWER_SEPARATOR)) if isinstance(truth, str) else texts(truth)


def _distinct(values: Iterable[str]) -> tuple[str, ...]:
    each = (one.strip() for value in values for one in listed(value))
    return tuple(dict.fromkeys(one for one in each if one))


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


def with_ability(row: dict[str, Any]) -> dict[str, Any]:
    """Answers are compared as texts unless the row's `ability` is "math"."""
    return {**row, "ability": MATH if row.get("ability") == MATH else QA}


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
        whole: whether rows are what worlds begin with: all their columns and system messages are kept, and they need
            neither question nor answer.
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
    whole: bool = False
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
_BOXED = {"answer": texts, "solution": last_boxed}
_ALIASES = {"golden_answers": texts, "answer": texts}
_WIKI_SPLITS = {TRAIN: "train", TEST: "dev"}


def _math(hub: Hub, answers: Mapping[str, AnswerReader] = _BOXED, row_id: str | None = None) -> DatasetSpec:
    return DatasetSpec(answers=answers, ability=MATH, row_id=row_id, tools=_CALCULATE, hub=hub)


def _qa(hub: Hub | None, answers: Mapping[str, AnswerReader], row_id: str | None = "id", **others: Any) -> DatasetSpec:
    return DatasetSpec(answers=answers, ability=QA, row_id=row_id, tools=_LOOK_UP, hub=hub, **others)


def _flash_rag(config: str, splits: Mapping[str, str], **others: Any) -> DatasetSpec:
    return _qa(Hub("RUC-NLPIR/FlashRAG_datasets", config, splits), _ALIASES, **others)


def _test_only(hub_id: str, split: str = "test", config: str | None = None) -> Hub:
    return Hub(hub_id, config, {TEST: split})


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
    "gsm8k": _math(Hub("openai/gsm8k", "main"), {"answer": after_hashes}),
    "math": _math(Hub("DigitalLearningGmbH/MATH-lighteval", "default")),
    "math500": _math(_test_only("HuggingFaceH4/MATH-500"), row_id="unique_id"),
    "aime24": _math(_test_only("HuggingFaceH4/aime_2024", "train"), row_id="id"),
    "aime25": _math(_test_only("math-ai/aime25"), row_id="id"),
    "hotpotqa": _qa(Hub("hotpotqa/hotpot_qa", "distractor", {TRAIN: "train", TEST: "validation"}), _ALIASES),
    "2wiki": _flash_rag("2wikimultihopqa", _WIKI_SPLITS),
    "musique": _flash_rag("musique", _WIKI_SPLITS, aliases=("answer_aliases",)),
    "bamboogle": _flash_rag("bamboogle", {TEST: "test"}),
    "simpleqa": _qa(_test_only("basicv8vc/SimpleQA"), {"answer": texts}, row_id=None),
    "webwalker": _qa(
        _test_only("callanwu/WebWalkerQA", "main"),
        {"answer": texts, "Answer": texts},
        row_id=None,
        question=("question", "Question"),
    ),
    "gaia": _qa(
        _test_only("gaia-benchmark/GAIA", "validation", "2023_all"),
        {"answer": texts, "Final answer": texts},
        row_id="task_id",
        question=("Question",),
        skip={"file_name": "an attached file"},
    ),
    "hle": _qa(_test_only("cais/hle"), {"answer": texts}, skip={"image": "an image"}),
    "xbench": _qa(
        _test_only("xbench/DeepSearch", "train"),
        {"answer": texts},
        question=("question", "prompt"),
        decode=decrypted,
    ),
    "qa": _qa(None, {"answer": texts, "answers": texts}, aliases=("answers",)),
    "rows": DatasetSpec(
        question=("prompt",),
        read_question=text_or_messages,
        answers={"answer": texts, "answers": texts},
        aliases=("answers",),
        ability=None,
        tools=(),
        whole=True,
        decode=with_ability,
    ),
    "arpo_mix": _arpo("dongguanting/ARPO-RL-Reasoning-10K"),
    "arpo_deepsearch": _arpo("dongguanting/ARPO-RL-DeepSearch-1K", QA),
    "parquet": _arpo(None),
}
