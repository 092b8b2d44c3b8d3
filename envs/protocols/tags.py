"""The paper's protocol: text tags.

A path looks like this (`<result>` is written by the environment, everything else by the model):

    <think> I need the price. </think>
    <search> brass lamp </search>
    <result> brass lamp: 12 </result>
    <python> print(7 * 12) </python>
    <result> 84 </result>
    <answer> \\boxed{84} </answer>
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import re
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rllib_arpo.envs.errors import ToolError
from rllib_arpo.envs.protocols.prompts import Chat, Message
from rllib_arpo.envs.protocols.protocol import (
    Answer,
    CallRequest,
    Malformed,
    Nothing,
    Parsed,
    Protocol,
    defused,
    only_punctuation,
)
from rllib_arpo.envs.question import Shot
from rllib_arpo.envs.support.boxes import boxed
from rllib_arpo.envs.tools.schema_tool import SchemaTool
from rllib_arpo.envs.tools.tool import ANSWER, RESULT, THINK, Tool, read_argument

#: Tags that count as malformed calls if their tools are missing.
STANDARD_TOOLS = ("python", "search")

_USES = {
    "search": "To look something up, write a query: <search> query </search>.",
    "python": "To compute, write a program that prints its result: <python> code </python>.",
}
_HOW_TO_ANSWER = (
    "When you know the answer, write it once, in LaTeX: <answer> The final answer is \\boxed{...} </answer>."
)


@dataclass(frozen=True)
class TagProtocol(Protocol):
    """The tag protocol `<think> <python> <search> <result> <answer>\\boxed{}`.

    Rules, for every turn:
      - Blocks are flat: no tag inside a call or an answer; a thought may mention opening tags (they do nothing), but no
        closing ones: generation stops there, and the thought would stay open.
      - Plain text between the blocks is allowed.
      - A call or an answer ends its turn. Only punctuation may follow (the token that completes the tag may carry it).
      - `<result>` belongs to the environment: if the model writes it, the format is bad.
      - The answer holds exactly one `\\boxed{}`, even for questions of knowledge, as in the ARPO authors' code.

    Attributes:
        tools: names of the tags that call a tool.
        available: those of them that the model has.
        require_thought: whether the format requires at least one thought, as the ARPO authors demand.
    """

    tools: tuple[str, ...] = STANDARD_TOOLS
    available: Mapping[str, Tool] = dataclasses.field(default_factory=dict)
    require_thought: bool = False
    results_within_turn = True

    @property
    def end_tags(self) -> tuple[str, ...]:
        return tuple(f"</{name}>" for name in (*self.tools, ANSWER))

    def parse(self, turn: str) -> Parsed:
        position, opened, begin = 0, None, 0
        for tag in self._tags().finditer(turn):
            closing, name = bool(tag[1]), tag[2]
            if name == RESULT:
                return Malformed("the model wrote a <result> tag")
            if opened is None:
                if closing:
                    return Malformed(f"</{name}> closes nothing")
                opened, begin = name, tag.end()
            elif closing and name == opened:
                position, opened = tag.end(), None
                if name != THINK:
                    return self._final_block(name, _content(turn[begin : tag.start()]), turn[position:])
            elif opened != THINK or closing or name == THINK:
                return Malformed(f"{tag[0]} inside <{opened}>")
        return Nothing() if opened is None else Malformed(f"<{opened}> is not closed")

    def format_error(self, turns: Sequence[str]) -> str | None:
        error = super().format_error(turns)
        if error is None and self.require_thought and not any(f"</{THINK}>" in turn for turn in turns):
            return "no thought"
        return error

    def instruction(self, *, answers: bool = True) -> str:
        calls = [_USES.get(name) or _use(tool) for name, tool in self.available.items()]
        rules = (
            "A call is answered between <result> and </result>; never write these two tags yourself. You may call tools"
            " several times, with a new thought before each call."
        )
        return "\n".join(
            [
                "Solve the question step by step. Write your reasoning between <think> and </think>.",
                *([*calls, rules] if calls else []),
                *([_HOW_TO_ANSWER] if answers else []),
            ]
        )

    def harmless(self, text: str) -> str:
        return defused(text, self._tags())

    def example(self, shot: Shot, shield: Callable[[str], str] = str) -> list[Message]:
        begin = f"<{THINK}> {shield(shot.thought)} </{THINK}> " if shot.thought else ""
        if shot.tool in self.available:
            call = f"<{shot.tool}> {shield(shot.argument)} </{shot.tool}>"
            begin = call + _block(shield(self.harmless(shot.result)))
        solution = f"{begin}<{ANSWER}> \\boxed{{{shield(shot.answer)}}} </{ANSWER}>"
        return [{"role": "user", "content": shield(shot.question)}, {"role": "assistant", "content": solution}]

    def turn(self, chat: Chat, text: str, name: str, arguments: Mapping[str, Any]) -> str:
        tool, texts = self.available[name], [json.dumps(arguments, ensure_ascii=False)]
        if len(tool.parameters) == len(arguments) == 1:
            (value,) = arguments.values()
            texts.insert(0, value if isinstance(value, str) else json.dumps(value, ensure_ascii=False))
        for argument in texts:
            turn = (f"{text}\n" if text else "") + f"<{name}> {argument} </{name}>"
            read = self.parse(turn)
            if not isinstance(read, CallRequest) or read.name != name:
                continue
            with contextlib.suppress(ToolError):
                if read_argument(tool, read.argument) == read_argument(tool, arguments):
                    return turn
        raise ValueError(f"the tags of {name!r} cannot hold its call ({argument!r:.100})")

    def response(self, chat: Chat, request: CallRequest, result: str, turn: np.ndarray) -> np.ndarray:
        return chat.encode(_block(chat.shield(self.harmless(result))), turn)

    def render(self, result: str) -> str:
        return _block(self.harmless(result))

    def _tags(self) -> re.Pattern[str]:
        names = "|".join(map(re.escape, (*self.tools, THINK, RESULT, ANSWER)))
        return re.compile(rf"<(/?)({names})>")

    def _final_block(self, name: str, content: str, rest: str) -> Parsed:
        if not only_punctuation(rest):
            return Malformed(f"text after </{name}>")
        if name == ANSWER:
            return Answer(boxed(content))
        return CallRequest(name, content) if content else Malformed(f"<{name}> is empty")


def _content(text: str) -> str:
    """What stands between two tags. If it begins on a line of its own, its lines lose the indentation that all have."""
    begins_below = text.lstrip(" \t\r").startswith("\n")
    return (textwrap.dedent(text) if begins_below else text).strip()


def _block(result: str) -> str:
    return f"\n<{RESULT}> {result} </{RESULT}>\n"


def _use(tool: Tool) -> str:
    """Tells the model to call a tool: the only argument stands bare between the tags, others in a JSON object."""
    names = list(tool.parameters)
    is_bare = len(names) == 1 and (not isinstance(tool, SchemaTool) or tool.takes_bare_value)
    named = "{" + ", ".join(f'"{name}": ...' for name in names) + "}"
    nothing = "{}" if isinstance(tool, SchemaTool) else "input"
    argument = names[0] if is_bare else named if names else nothing
    purpose = f" ({tool.description.rstrip('.')})" if tool.description else ""
    return f"To use {tool.name}{purpose}, write <{tool.name}> {argument} </{tool.name}>."
