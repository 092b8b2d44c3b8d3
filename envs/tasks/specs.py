"""The table of data sets and layouts. The readers of its columns raise a ValueError that says what is wrong."""

from __future__ import annotations

import base64
import contextlib
import json
import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from rllib_arpo.envs.question import MATH, QA
from rllib_arpo.envs.support.boxes import answers_in_list, solution_answer
from rllib_arpo.envs.tasks.task import TEST, TRAIN

Messages = list[tuple[str, str]]
ANSWER_SEPARATOR = "<|answer_split|>"
#: The task that recognises the layout of a file's rows.
PARQUET = "parquet"
#: Keys of right answers in an object: TriviaQA's, SQuAD's, Search-R1's.
ANSWERS_IN = ("value", "aliases", "text", "target")

#: Instructions that data sets write before and after a question: DAPO's, Search-R1's, verl's for GSM8K and MATH. They
#: ask for an answer in another format than the protocol's.
_BEFORE = re.compile(
    r"\A\s*(?:Solve the following math problem step by step\. The last line of your .*?is the answer to the problem\."
    r"|Answer the given question\. You must conduct reasoning inside .*?Question:)",
    re.DOTALL,
)
_AFTER = (
    'Remember to put your answer on its own line after "Answer:".',
    'Let\'s think step by step and output the final answer after "####".',
    "Let's think step by step and output the final answer within \\boxed{}.",
)
#: How the publishers of data sets call the two abilities.
ABILITIES = {"math": MATH, "qa": QA, "fact-reasoning": QA}

AnswerReader = Callable[[Any], tuple[str, ...]]


@dataclass(frozen=True, slots=True)
class Hub:
    """The address of a data set on the Hugging Face hub; `splits` maps "train" and "test" to its own names."""

    hub_id: str
    config: str | None = None
    splits: Mapping[str, str] = field(default_factory=lambda: {TRAIN: "train", TEST: "test"})


def asked(value: Any) -> Messages:
    """A question that is a string, or a list of {role, content}, also one in JSON."""
    if not isinstance(value, str):
        return chat_messages(value)
    if not value.strip():
        raise ValueError("has no text")
    if value.lstrip().startswith("["):
        with contextlib.suppress(ValueError):
            return chat_messages(json.loads(value))
    return [("user", value)]


def bare(value: Any) -> Messages:
    """The same without the instruction that its data set writes around it."""

    def question(text: str) -> str:
        left = _BEFORE.sub("", text)
        for instruction in _AFTER:
            left = left.strip().removesuffix(instruction)
        return left.strip() or text

    return [(role, question(content)) for role, content in asked(value)]


def chat_messages(value: Any) -> Messages:
    """A question that is a list of {role, content}."""
    if not isinstance(value, list) or not all(isinstance(message, dict) for message in value):
        raise ValueError("is not a list of {role, content}")
    if any(message.get("tool_calls") for message in value):
        raise ValueError(
            "has a message with `tool_calls`, which a question cannot show: write the call into its content"
        )
    messages: list[tuple[Any, Any]] = [(message.get("role"), _content(message)) for message in value]
    if not all(isinstance(text, str) for message in messages for text in message):
        raise ValueError("has a message whose role or content is not a string")
    if not any(role == "user" and content.strip() for role, content in messages):
        raise ValueError("has no user message with text")
    return [("system" if role == "developer" else role, content) for role, content in messages]


def _content(message: Mapping[str, Any]) -> Any:
    """A message's content; of a list of parts, as OpenAI has it, their text."""
    content = message.get("content")
    parts: list[Any] = content if isinstance(content, list) else [None]
    said = [part.get("text") if isinstance(part, dict) else None for part in parts]
    return content if None in said else "".join(map(str, said))


def last_question(value: Any) -> Messages:
    """A conversation (OpenAI's) up to its last user message."""
    messages = [message for message in value if isinstance(message, dict)] if isinstance(value, list) else []
    end = max((i for i, message in enumerate(messages) if message.get("role") == "user"), default=-1) + 1
    if any(message.get("tool_calls") or message.get("role") == "tool" for message in messages[:end]):
        raise ValueError("has tool calls before its last user message, which a question cannot show")
    return chat_messages(messages[:end])


def last_answer(value: Any) -> tuple[str, ...]:
    """What the last message of a conversation states as its answer."""
    last = value[-1] if isinstance(value[-1], dict) and value[-1].get("role") == "assistant" else {}
    return solved(_content(last))


def texts(value: Any) -> tuple[str, ...]:
    """A string or a number, or a list of them: each is a right answer. Of an object those under `ANSWERS_IN`."""
    if isinstance(value, dict) and (names := [name for name in ANSWERS_IN if name in value]):
        return _distinct(answer for name in names for answer in texts(value[name]))
    values = value if isinstance(value, list | tuple) else [value]
    if not all(isinstance(one, str | int | float) and not isinstance(one, bool) for one in values if one is not None):
        raise ValueError("must be a string, a number, or a list of them")
    if any(isinstance(one, float) and not math.isfinite(one) for one in values):
        raise ValueError("has a number that is not finite")
    whole = (int(one) if isinstance(one, float) and one.is_integer() else one for one in values)
    return _distinct(str(one) for one in whole if one is not None)


def solved(value: Any) -> tuple[str, ...]:
    """The answer of a worked solution."""
    answer = solution_answer(value) if isinstance(value, str) else None
    if answer is None:
        raise ValueError("does not state its answer in \\boxed{}, or after '####'")
    return (answer,)


def ground_truth(value: Any) -> tuple[str, ...]:
    """verl's `reward_model`: its `ground_truth`; in a text of the ARPO authors `<|answer_split|>` separates answers."""
    truth = value.get("ground_truth") if isinstance(value, dict) else None
    if truth is None:
        raise ValueError("is not an object with a `ground_truth`")
    try:
        return _distinct(truth.split(ANSWER_SEPARATOR)) if isinstance(truth, str) else texts(truth)
    except ValueError as error:
        raise ValueError(f"has a `ground_truth` that {error}") from error


def _distinct(values: Iterable[str]) -> tuple[str, ...]:
    each = (one.strip() for value in values for one in answers_in_list(value))
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
    except (ValueError, TypeError) as error:
        raise ValueError(f"`{name}` is not encrypted with the row's `canary`") from error


@dataclass(frozen=True, kw_only=True, slots=True)
class DatasetSpec:
    """One data set, or one layout that several have.

    Attributes:
        question: columns that may hold the question; the task reads the first one that a row has.
        answers: column -> reader, likewise.
        marks: how the task "parquet" recognises the layout, beside a question and an answer: column -> a text in its
            value, as Python prints it. None: only its name chooses it.
        aliases: columns with further right answers.
        read_question: column's value -> messages.
        ability: how answers are compared; None: the row's column `ability` states it.
        row_id: the column with the row's own name.
        tools: the model's tools by default.
        hub: its place on the hub.
        whole: whether rows are what worlds begin with: all their columns and system messages are kept, and they need
            neither question nor answer.
        skip: column -> value -> the reason why a row with this value cannot be asked; "" stands for any value.
        decode: row -> row, before anything is read.
        decode_columns: columns that only `decode` reads.
    """

    question: tuple[str, ...] = ("question", "problem", "Question")
    answers: Mapping[str, AnswerReader]
    marks: Mapping[str, str] | None = None
    aliases: tuple[str, ...] = ()
    read_question: Callable[[Any], Messages] = asked
    ability: str | None = None
    row_id: str | None = None
    tools: tuple[str, ...] = ("search", "python")
    hub: Hub | None = None
    whole: bool = False
    skip: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    decode: Callable[[dict[str, Any]], dict[str, Any]] = dict
    decode_columns: tuple[str, ...] = ()

    @property
    def columns(self) -> tuple[str, ...] | None:
        """The columns that are read; None: all."""
        if self.whole:
            return None
        others = ("ability", *self.decode_columns, *filter(None, [self.row_id]))
        return tuple(dict.fromkeys((*self.question, *self.answers, *self.aliases, *others)))

    def fits(self, row: Mapping[str, Any]) -> bool:
        """Whether the task "parquet" reads such rows in this way."""
        present = [any(row.get(name) is not None for name in names) for names in (self.question, self.answers)]
        marked = [row.get(name) is not None and text in str(row[name]) for name, text in (self.marks or {}).items()]
        return self.marks is not None and all((*present, *marked))


_ANSWERS = dict.fromkeys(("golden_answers", "answer", "answers", "Answer", "Final answer"), texts)
_TRAIN_ONLY, _TEST_ONLY = {TRAIN: "train"}, {TEST: "test"}
_DEV, _VALIDATION = {TRAIN: "train", TEST: "dev"}, {TRAIN: "train", TEST: "validation"}
_NOT_SHOWN = {name: {"": f"`{name}`, which the question does not show"} for name in ("images", "choices", "options")}
#: NuminaMath also has problems that are to be proved.
_PROOFS = {"answer": {"proof": "no answer but a proof", "notfound": "no answer"}, **_NOT_SHOWN}

_math = partial(DatasetSpec, ability=MATH, answers={"answer": texts, "solution": solved}, tools=("python",))
_qa = partial(DatasetSpec, ability=QA, answers=_ANSWERS, row_id="id")
_flash_rag = partial(Hub, "RUC-NLPIR/FlashRAG_datasets")
#: verl's layout, which the ARPO authors use: their files of deep search leave the column `ability` empty.
_verl = partial(
    DatasetSpec, question=("prompt",), read_question=bare, answers={"reward_model": ground_truth}, skip=_NOT_SHOWN
)
_OTHERS = ("answer", "answers", "ground_truth", "final_answer", "expected_answer", "solution", "label")
_ANY_ANSWERS = {"reward_model": ground_truth, **dict.fromkeys(_OTHERS, texts)}

#: Name of the task -> data set. The task "parquet" reads a file as the first of them that fits its first row.
SPECS: dict[str, DatasetSpec] = {
    "simpleqa": _qa(hub=Hub("basicv8vc/SimpleQA", None, _TEST_ONLY), marks={"metadata": "answer_type"}),
    "search_r1": _qa(hub=Hub("PeterJinGo/nq_hotpotqa_train"), marks={"golden_answers": ""}),
    "triviaqa": _qa(hub=Hub("mandarjoshi/trivia_qa", "rc.nocontext", _VALIDATION), marks={"answer": "'aliases'"}),
    "squad": _qa(hub=Hub("rajpurkar/squad", None, _VALIDATION), marks={"answers": "'text'"}),
    "hotpotqa": _qa(hub=Hub("hotpotqa/hotpot_qa", "distractor", _VALIDATION), marks={"supporting_facts": ""}),
    "2wiki": _qa(hub=_flash_rag("2wikimultihopqa", _DEV)),
    "musique": _qa(hub=_flash_rag("musique", _DEV), aliases=("answer_aliases",), marks={"answer_aliases": ""}),
    "bamboogle": _qa(hub=_flash_rag("bamboogle", _TEST_ONLY)),
    "gsm8k": _math(hub=Hub("openai/gsm8k", "main"), answers={"answer": solved}, marks={"answer": "####"}),
    "math": _math(hub=Hub("DigitalLearningGmbH/MATH-lighteval", "default"), marks={"problem": ""}, skip=_PROOFS),
    "math500": _math(hub=Hub("HuggingFaceH4/MATH-500", None, _TEST_ONLY), row_id="unique_id"),
    "aime24": _math(hub=Hub("HuggingFaceH4/aime_2024", None, {TEST: "train"}), row_id="id"),
    "aime25": _math(hub=Hub("math-ai/aime25", None, _TEST_ONLY), row_id="id"),
    "webwalker": _qa(hub=Hub("callanwu/WebWalkerQA", None, {TEST: "main"})),
    "gaia": _qa(
        hub=Hub("gaia-benchmark/GAIA", "2023_all", {TEST: "validation"}),
        row_id="task_id",
        skip={"file_name": {"": "an attached file"}},
    ),
    "hle": _qa(hub=Hub("cais/hle", None, _TEST_ONLY), skip={"image": {"": "an image"}}),
    "xbench": _qa(
        hub=Hub("xbench/DeepSearch", None, {TEST: "train"}),
        question=("question", "prompt"),
        decode=decrypted,
        decode_columns=("canary",),
    ),
    "qa": _qa(aliases=("answers",), marks={"answers": ""}),
    "rows": _qa(question=("prompt",), aliases=("answers",), row_id=None, ability=None, tools=(), whole=True),
    "dapo": _verl(hub=Hub("BytedTsinghua-SIA/DAPO-Math-17k", None, _TRAIN_ONLY)),
    "arpo_mix": _verl(hub=Hub("dongguanting/ARPO-RL-Reasoning-10K", None, _TRAIN_ONLY)),
    "arpo_deepsearch": _verl(hub=Hub("dongguanting/ARPO-RL-DeepSearch-1K", None, _TRAIN_ONLY), ability=QA),
    "messages": _verl(
        question=("messages",),
        read_question=last_question,
        answers={"answer": texts, "messages": last_answer},
        marks={},
    ),
    PARQUET: _verl(question=("question", "problem", "prompt"), answers=_ANY_ANSWERS, marks={}),
}
#: The columns by which "parquet" recognises a layout.
MARKED = tuple({name for one in SPECS.values() for name in (*one.question, *one.answers, *(one.marks or ()))})
