"""Transcripts, which a cold start learns: rows of a file, cut into what the model writes and what it reads.

A row (JSON lines or parquet) is

    {"messages": [{"role": "user", "content": "..."}, {"role": "assistant", "content": "..."}]}

The model writes the assistant's texts, each with the token that ends a turn. Calls come in one of two forms:

- In OpenAI's, a message has `tool_calls`, messages of the role "tool" have the results, and the row has `tools`. The
  protocol of the run writes them, each call as a turn of its own. A message with `"weight": 0` is read, not learnt.
- Otherwise the texts hold the calls, and in `<result>...</result>` what the tools answered. The model does not write
  these blocks, nor the white space around them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rllib_arpo.envs.errors import DataError
from rllib_arpo.envs.protocols import PROTOCOLS
from rllib_arpo.envs.protocols.prompts import Chat, Message
from rllib_arpo.envs.protocols.protocol import (
    Nothing,
    Protocol,
    after_turn,
    check_goes_on,
    end_of_turn,
    special_beginning,
)
from rllib_arpo.envs.support.data_files import check_unicode
from rllib_arpo.envs.support.texts import mapped
from rllib_arpo.envs.tasks.rows import all_rows, open_file
from rllib_arpo.envs.tools.schema_tool import SchemaTool
from rllib_arpo.envs.tools.tool import RESERVED_NAMES, THINK, check_name
from rllib_arpo.envs.worlds.completions import Refused, read_message

_RESULT_TAG = re.compile(r"</?result>")
# The environment also writes the white space around a block.
_RESULT_BLOCK = re.compile(r"(\s*<result>.*?</result>\s*)", re.DOTALL)
#: Keys of a message in which other servers keep the thoughts before it.
_THOUGHTS = ("reasoning_content", "reasoning", "thinking")
#: Keys of a message that hold what cannot be learnt.
_UNREADABLE = ("function_call", "audio", "refusal")


@dataclass(frozen=True, slots=True)
class Transcript:
    """A row.

    Attributes:
        messages: as `read_message` returns them, and with their "weight" if that is 0.
        functions: its "tools".
    """

    messages: Sequence[Message]
    functions: Sequence[Mapping[str, Any]] = ()

    @property
    def has_calls(self) -> bool:
        """Whether its calls are in OpenAI's form."""
        return bool(self.functions) or any("tool_calls" in message for message in self.messages)


@dataclass(frozen=True, slots=True)
class Segment:
    """A piece of a transcript; `generated` tells whether the model learns to write it."""

    text: str
    generated: bool


class _Described(SchemaTool):
    """A tool of a row, which nobody calls."""

    async def __call__(self, argument: Any) -> str:
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class _Said:
    """What the assistant says between two messages of others.

    Attributes:
        ends: whether it ends its turn; a call between tags does not.
    """

    pieces: list[Segment]
    ends: bool = True


def read_transcripts(path: str | Path) -> dict[str, Transcript]:
    """The rows of a .jsonl, .json or .parquet file, checked, by their places; rows are counted from 0.

    Raises:
        DataError: there is no such file, or a row is not a transcript.
    """
    transcripts = {}
    for number, row in all_rows(open_file(str(path)), ("messages", "tools")):
        try:
            # Columns of structs have all keys in every row, also where `Dataset.to_json` wrote them.
            transcripts[f"{path}, row {number}"] = _read_row(_without_nulls(row))
        except (ValueError, Refused) as error:
            raise DataError(f"{path}, row {number}: {error}") from error
    if not transcripts:
        raise DataError(f"{path} has no rows.")
    return transcripts


def _without_nulls(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_nulls(inner) for key, inner in value.items() if inner is not None}
    return [_without_nulls(inner) for inner in value] if isinstance(value, list) else value


def _read_row(row: Mapping[str, Any]) -> Transcript:
    """Raises ValueError or Refused: it is not a transcript."""
    given, tools = row.get("messages"), row.get("tools") or ()
    if not isinstance(given, list) or not given:
        raise ValueError('a row is {"messages": [...]} with at least one message.')
    tools = json.loads(tools) or () if isinstance(tools, str) else tools
    check_unicode(json.dumps([given, tools], ensure_ascii=False, default=str))
    if not isinstance(tools, list | tuple) or not all(map(_is_function, tools)):
        raise ValueError('tools must be a list of {"type": "function", "function": {"name": "...", ...}}.')
    names: dict[str, str] = {}
    messages = [_read_message(message, number, names) for number, message in enumerate(given)]
    if messages[-1]["role"] != "assistant":
        raise ValueError(f"the last message must be the assistant's, not the {messages[-1]['role']}'s.")
    return Transcript(messages, tools)


def _is_function(tool: Any) -> bool:
    function = tool.get("function") if isinstance(tool, dict) else None
    return isinstance(function, dict) and isinstance(function.get("name"), str)


def _read_message(given: Any, number: int, names: dict[str, str]) -> dict[str, Any]:
    message = given if isinstance(given, dict) else {}
    has_content = isinstance(message.get("content"), str | list) or message.get("tool_calls")
    if not isinstance(message.get("role"), str) or not has_content:
        raise ValueError(f"message {number} must have a role and a content, both text.")
    if unreadable := [key for key in _UNREADABLE if message.get(key)]:
        raise ValueError(f"message {number} has {unreadable[0]!r}, which a cold start cannot learn.")
    read = dict(read_message({"tool_call_id": "", **message}, names))
    if thought := next((message[key] for key in _THOUGHTS if message.get(key)), ""):
        read["content"] = f"<{THINK}>\n{str(thought).strip()}\n</{THINK}>\n\n{read['content']}"
    return {**read, "weight": 0} if message.get("weight") == 0 else read


def split_transcript(chat: Chat, transcript: Transcript, protocol: str | None = None) -> list[Segment]:
    """Cuts a transcript into the text that the model writes and the text that it reads, as a rollout does.

    So the template's prompt stands before every turn, and the model's own texts stay as they are, whatever the template
    would make of them later. A thought that the prompt has opened is not opened again.

    Args:
        protocol: a name in `PROTOCOLS`; rows with tools need it.

    Raises:
        ValueError: the template or the protocol cannot write the transcript, or the assistant says nothing somewhere.
        TemplateError: the template refuses these messages.
    """
    functions: Sequence[Message] = mapped(transcript.functions, chat.shield)
    conversation = list(transcript.messages)
    writer = None
    if transcript.has_calls:
        writer = _writer(chat, transcript, protocol)
        if writer.results_within_turn:
            functions = ()
            conversation = _instructed(conversation, writer)
    reads: list[list[Message]] = [[]]
    said: list[_Said] = []
    for part in _parts(chat, conversation, writer, len(transcript.messages) - len(conversation)):
        if isinstance(part, _Said):
            said.append(part)
            reads.append([])
        else:
            reads[-1].append(part)
    later = [message for messages in reads[1:] for message in messages]
    for role, name in dict.fromkeys((message["role"], message.get("name", "")) for message in later):
        check_goes_on(chat, functions, role, name)
    segments = [Segment(chat.render(reads[0], functions), False)]
    for one, following in zip(said, [*reads[1:-1], None], strict=True):
        segments += _opened(chat, segments[-1].text, one.pieces)
        if one.ends:
            segments += _between(chat, functions, following, one.pieces[-1].generated)
    return [segment for segment in segments if segment.text]


def ends_without_answer(chat: Chat, transcript: Transcript, protocol: str | None) -> bool:
    """Whether a transcript with calls ends with a turn in which the protocol reads neither a call nor an answer."""
    last = transcript.messages[-1]
    if not transcript.has_calls or last.get("tool_calls"):
        return False
    return isinstance(_writer(chat, transcript, protocol).parse(last["content"]), Nothing)


def _writer(chat: Chat, transcript: Transcript, protocol: str | None) -> Protocol:
    """The protocol with the row's tools."""
    if protocol is None:
        raise ValueError(f"it has tools: say with which protocol the run calls them ({', '.join(PROTOCOLS)}).")
    tools = {}
    for function in (tool["function"] for tool in transcript.functions):
        check_name(name := function["name"])
        if name in RESERVED_NAMES:
            raise ValueError(f"{name!r} cannot be the name of a tool.")
        schema = function.get("parameters") or {"type": "object", "properties": {}}
        tools[name] = _Described(
            name=name, description=function.get("description") or "", input_schema=schema, timeout_s=1,
            max_result_tokens=1,
        ).shielded(chat.shield)  # fmt: skip
        tools[name].check_schema()
    return PROTOCOLS[protocol](tools, chat)


def _instructed(messages: list[Message], writer: Protocol) -> list[Message]:
    """The messages, whose system message says how to call the tools."""
    own = [messages.pop(0)["content"]] if messages[0]["role"] == "system" else []
    return [{"role": "system", "content": "\n\n".join([*own, writer.instruction(answers=False)])}, *messages]


def _parts(chat: Chat, messages: Sequence[Message], writer: Protocol | None, start: int) -> Iterator[Message | _Said]:
    """The messages of others, shielded, and what the assistant says between them, with its calls.

    Args:
        start: the number of the first message.
    """
    pieces: list[Segment] = []
    waiting = list(enumerate(messages, start))
    while waiting:
        number, message = waiting.pop(0)
        if message["role"] == "tool" and writer is not None:
            raise ValueError(f"message {number} is the result of no call.")
        if message["role"] != "assistant":
            content = message["content"]
            yield message if message["role"] == "system" else {**message, "content": chat.shield(content)}
            continue
        learnt = message.get("weight") != 0
        if writer is None:
            yield _Said(_text_pieces(chat, number, message["content"], learnt))
            continue
        calls = message.get("tool_calls", ())
        if not calls:
            _check_said(number, message["content"])
            yield _Said([*pieces, Segment(message["content"], learnt)])
            pieces = []
        results = _results(number, calls, waiting)
        for call, result in zip(calls, results, strict=True):
            text = message["content"].strip() if call is calls[0] else ""
            name, arguments = call["function"]["name"], call["function"]["arguments"]
            if name not in writer.available:
                raise ValueError(f"it calls {name!r}, which is not one of its tools")
            writer.available[name].check(arguments)
            turn = writer.turn(chat, text, name, arguments)
            pieces.append(Segment(turn, learnt))
            if not writer.results_within_turn:
                yield _Said(pieces)
                pieces = []
                if result is not None:
                    content = chat.shield(writer.render(result["content"]))
                    yield {**result, "name": name, "content": content}
            elif result is None:
                yield _Said(pieces, ends=False)
            elif not waiting or waiting[0][1]["role"] != "assistant":
                raise ValueError(f"message {number} of the assistant calls a tool, and none of it follows the result.")
            else:
                pieces.append(Segment(chat.shield(writer.render(result["content"])), False))


def _results(number: int, calls: Sequence[Message], waiting: list[tuple[int, Message]]) -> list[Message | None]:
    """Takes the results of a message's calls from those that follow; the last message's only call may have none."""
    results: list[Message] = []
    while waiting and waiting[0][1]["role"] == "tool" and len(results) < len(calls):
        results.append(waiting.pop(0)[1])
    if not results and not waiting and len(calls) == 1:
        return [None]
    ids = [call.get("id") for call in calls]
    if any(ids):
        by_id = {result["tool_call_id"]: result for result in results}
        results = [by_id[one] for one in dict.fromkeys(ids) if one in by_id]
    if len(results) != len(calls):
        raise ValueError(f"the calls of message {number} and the results that follow do not belong together.")
    return [*results]


def _text_pieces(chat: Chat, number: int, text: str, learnt: bool) -> list[Segment]:
    """A text of the assistant, and in it what the tools answered."""
    outside = _RESULT_BLOCK.sub("", text)
    if _RESULT_TAG.search(outside):
        raise ValueError("a <result> or </result> tag of the assistant's text has no partner.")
    _check_said(number, outside)
    # With a capturing group, `split` alternates between the text outside of the blocks and the blocks.
    pieces = [Segment(piece, i % 2 == 0) for i, piece in enumerate(_RESULT_BLOCK.split(text))]
    return [Segment(p.text, learnt) if p.generated else Segment(chat.shield(p.text), False) for p in pieces]


def _check_said(number: int, text: str) -> None:
    if not text.strip():
        raise ValueError(f"message {number}, the assistant's, says nothing and calls nothing.")


def _opened(chat: Chat, before: str, pieces: list[Segment]) -> list[Segment]:
    """The pieces behind a text that may have opened a thought, which a turn without one closes at once."""
    first, *others = pieces
    if not before.rstrip().endswith(f"<{THINK}>"):
        return [Segment(chat.lead + first.text, first.generated), *others]
    text = first.text.lstrip()
    begun = text.removeprefix(f"<{THINK}>").lstrip() if text.startswith(f"<{THINK}>") else f"</{THINK}>\n\n{text}"
    return [Segment(begun, first.generated), *others]


def _between(
    chat: Chat, functions: Sequence[Mapping[str, Any]], messages: Sequence[Message] | None, learnt: bool
) -> list[Segment]:
    """The token that ends a turn, and what the model reads then; `messages` is None after the last turn."""
    after = ""
    if messages is not None:
        after = after_turn(chat, functions, *messages)
    end = end_of_turn(chat) if messages is None else special_beginning(chat, after)
    if not end and (messages is None or not chat.has_template):
        end = chat.tokenizer.eos_token or ""
    if not end:
        raise ValueError(
            f"The chat template of {chat.name} does not end the assistant's messages with a special token, so what the"
            " model writes cannot be told apart."
        )
    return [Segment(end, learnt), Segment(after.removeprefix(end), False)]
