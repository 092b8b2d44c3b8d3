"""Native function calling, as Hermes and Qwen models were trained for it.

The chat template describes the tools and frames their results; a call is JSON between tags:

    I need the price.
    <tool_call>
    {"name": "search", "arguments": {"query": "brass lamp"}}
    </tool_call>

The text between the call and the model's next token comes from the template itself: the protocol renders a conversation
with a tool message, and takes the text after the assistant's message. So it is right for every template of this family.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rllib_arpo.envs.protocols.prompts import USER, Chat, Message, special_texts
from rllib_arpo.envs.protocols.protocol import (
    Answer,
    CallRequest,
    Malformed,
    Nothing,
    Parsed,
    Protocol,
    check_goes_on,
    defused,
    end_of_turn,
    only_punctuation,
)
from rllib_arpo.envs.question import Shot
from rllib_arpo.envs.support.boxes import boxed, has_box
from rllib_arpo.envs.tools.arguments import parse_model_json
from rllib_arpo.envs.tools.tool import CALL, RESPONSE, THINK, TOOLS, Tool

#: The end of a refusal.
REMEDY = "; choose a model with such a template (Qwen2.5, Qwen3), or protocol 'tags', which works without one."
_TAG = re.compile(rf"<(/?)({CALL}|{THINK})>")
_RESERVED = re.compile(rf"<(/?)({CALL}|{RESPONSE}|{THINK}|{TOOLS})>")


@dataclass(frozen=True)
class FunctionCallingProtocol(Protocol):
    """Calls are `<tool_call>` blocks, results are tool messages, the answer is a turn without a call.

    Rules, for every turn:
      - A turn makes one call. It ends with the call: generation stops at `</tool_call>`, and only punctuation may
        follow. This excludes parallel calls: the model makes a second call in the next turn, where it knows the first
        result and where ARPO can fork.
      - A call is one JSON object with the keys "name" and "arguments", an object. Anything else is malformed; if the
        arguments of a known tool are wrong, the tool answers with an error.
      - Plain text before the call is allowed. Text between `<think>` and `</think>` neither calls nor answers.
      - A turn without a call is the answer, if it has a `\\boxed{}` outside of its thoughts; it must have exactly one.
      - `<tool_response>` and the tokens that structure the chat ("<|im_start|>") are bad format everywhere.

    Attributes:
        available: name -> tool.
        end_of_turn: the text of the token that ends the assistant's messages.
        special: texts of the tokenizer's special tokens.
    """

    available: Mapping[str, Tool]
    end_of_turn: str
    special: frozenset[str] = frozenset()

    @property
    def end_tags(self) -> tuple[str, ...]:
        return (f"</{CALL}>",)

    @property
    def stop(self) -> tuple[str, ...]:
        return (*self.end_tags, self.end_of_turn)

    @property
    def functions(self) -> Sequence[Mapping[str, Any]]:
        return [json_schema(tool) for tool in self.available.values()]

    def parse(self, turn: str) -> Parsed:
        turn = turn.removesuffix(self.end_of_turn)
        forbidden = self._forbidden().search(turn)
        if forbidden:
            return Malformed(f"the model wrote {forbidden[0]}")
        opened, begin, said = None, 0, ""
        for tag in _TAG.finditer(turn):
            closing, name = bool(tag[1]), tag[2]
            if opened is None and closing:
                return Malformed(f"{tag[0]} closes nothing")
            if opened is None:
                said += turn[begin : tag.start()]
                opened, begin = name, tag.end()
            elif closing and name == opened:
                if name == CALL:
                    return _read_call(turn[begin : tag.start()], turn[tag.end() :])
                opened, begin = None, tag.end()
        if opened is not None:
            return Malformed(f"<{opened}> is not closed")
        said += turn[begin:]
        return Answer(boxed(said)) if has_box(said) else Nothing()

    def instruction(self, *, answers: bool = True) -> str:
        calls = " Call one tool at a time, as often as you need to." if self.available else ""
        answer = (
            " When you know the answer, write it once, in LaTeX: The final answer is \\boxed{...}." if answers else ""
        )
        return f"Solve the question step by step.{calls}{answer}"

    def harmless(self, text: str) -> str:
        return defused(text, _RESERVED)

    def said(self, turn: str) -> str:
        return super().said(turn.removesuffix(self.end_of_turn)).partition(f"<{CALL}>")[0].strip()

    def example(self, shot: Shot, shield: Callable[[str], str] = str) -> list[Message]:
        messages: list[Message] = [{"role": "user", "content": shield(shot.question)}]
        thought = f"{shield(shot.thought)} " if shot.thought else ""
        if shot.tool in self.available:
            arguments = dict.fromkeys(self.available[shot.tool].parameters, shield(shot.argument))
            call = {"type": "function", "function": {"name": shot.tool, "arguments": arguments}}
            messages += [
                {"role": "assistant", "content": "", "tool_calls": [call]},
                {"role": "tool", "name": shot.tool, "content": shield(shot.result)},
            ]
            thought = ""
        answer = f"{thought}The final answer is \\boxed{{{shield(shot.answer)}}}."
        return [*messages, {"role": "assistant", "content": answer}]

    def turn(self, chat: Chat, text: str, name: str, arguments: Mapping[str, Any]) -> str:
        call = {"type": "function", "function": {"name": name, "arguments": arguments}}
        said: Message = {"role": "assistant", "content": "", "tool_calls": [call]}
        messages: list[Message] = [{"role": "user", "content": USER}, said]
        rendered = chat.render(messages, self.functions, generation_prompt=False)
        begin, end = rendered.rfind(f"<{CALL}>"), rendered.rfind(f"</{CALL}>") + len(f"</{CALL}>")
        turn = (f"{text}\n" if text else "") + rendered[begin:end]
        if self.parse(turn) != CallRequest(name, dict(arguments)):
            raise ValueError(f"the chat template of {chat.name} writes a call that cannot be read back ({turn!r:.100})")
        return turn

    def response(self, chat: Chat, request: CallRequest, result: str, turn: np.ndarray) -> np.ndarray:
        message = {"role": "tool", "name": request.name, "content": result}
        return self.replies(chat, [message], self.functions, turn)

    def _forbidden(self) -> re.Pattern[str]:
        tags = {f"<{slash}{name}>" for slash in ("", "/") for name in (CALL, THINK)}
        texts = [*sorted(self.special - tags), f"<{RESPONSE}>", f"</{RESPONSE}>"]
        return re.compile("|".join(map(re.escape, texts)))


def function_calling(tools: Mapping[str, Tool], chat: Chat) -> FunctionCallingProtocol:
    """The protocol for this chat template.

    Raises:
        ValueError: there is no template, or it does not support tools that are called in this way.
    """
    from jinja2 import TemplateError

    if not chat.has_template:
        raise ValueError(f"protocol 'function_calling' needs a chat template, and {chat.name} has none{REMEDY}")
    try:
        end = end_of_turn(chat)
        if not end:
            raise ValueError(
                f"the chat template of {chat.name} does not end the assistant's messages with a special token"
            )
        protocol = FunctionCallingProtocol(tools, end, special_texts(chat.tokenizer))
        if tools:
            _check_tool_support(chat, protocol)
    except ValueError as error:
        raise ValueError(f"protocol 'function_calling': {error}{REMEDY}") from error
    except TemplateError as error:
        raise ValueError(f"protocol 'function_calling': the chat template of {chat.name} fails ({error}).") from error
    return protocol


def _check_tool_support(chat: Chat, protocol: FunctionCallingProtocol) -> None:
    """Raises a ValueError unless the template describes the tools, writes `<tool_call>` and shows a tool's result."""
    prompt = chat.render([{"role": "user", "content": USER}], protocol.functions)
    if fault := no_tool_support(chat, prompt, protocol.available):
        raise ValueError(fault)
    name = next(iter(protocol.available))
    protocol.turn(chat, "", name, {"a": "b"})
    check_goes_on(chat, protocol.functions, "tool", name)


def no_tool_support(chat: Chat, prompt: str, names: Iterable[str]) -> str:
    """What is wrong if a prompt does not describe the tools of these names; empty: it does."""
    missing = [name for name in (f"<{CALL}>", *names) if name not in prompt]
    support = f"the chat template of {chat.name} has no support for tools that are called with <{CALL}>"
    return f"{support} (its prompt lacks {missing[0]})" if missing else ""


def json_schema(tool: Tool) -> dict[str, Any]:
    """The tool's description in the format of chat templates and OpenAI-compatible servers."""
    return {
        "type": "function",
        "function": {"name": tool.name, "description": tool.description, "parameters": tool.schema()},
    }


def _read_call(text: str, rest: str) -> Parsed:
    if not only_punctuation(rest):
        return Malformed(f"text after </{CALL}>")
    try:
        call = parse_model_json(text)
    except ValueError:
        return Malformed(f"<{CALL}> does not hold JSON")
    if not isinstance(call, dict) or set(call) != {"name", "arguments"}:
        return Malformed(f'<{CALL}> does not hold an object with "name" and "arguments"')
    if not isinstance(call["name"], str) or not isinstance(call["arguments"], dict):
        return Malformed('"name" must be a string and "arguments" an object')
    return CallRequest(call["name"], call["arguments"])
