"""How a model calls tools and answers: text tags, read only from text that the model generated.

A path of the `tags` protocol looks like this (`<result>` is written by the environment, everything else by the model):

    <think> I need the price. </think>
    <search> brass lamp </search>
    <result> brass lamp: 12 </result>
    <python> print(7 * 12) </python>
    <result> 84 </result>
    <answer> \\boxed{84} </answer>
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

THINK, RESULT, ANSWER = "think", "result", "answer"


@dataclass(frozen=True, slots=True)
class CallRequest:
    """The turn asks for a tool: `argument` is the text between the tags, stripped."""

    name: str
    argument: str


@dataclass(frozen=True, slots=True)
class Answer:
    """The turn answers. `text` is the content of `\\boxed{}`; None when the answer has not exactly one box."""

    text: str | None


@dataclass(frozen=True, slots=True)
class Malformed:
    """The turn's tags are wrong; `reason` is one short sentence."""

    reason: str


@dataclass(frozen=True, slots=True)
class Nothing:
    """The turn neither calls nor answers."""


Parsed = CallRequest | Answer | Malformed | Nothing


@dataclass(frozen=True, slots=True)
class TagProtocol:
    """The tag protocol `<think> <python> <search> <result> <answer>\\boxed{}`.

    Rules, for every turn:
      - Blocks are flat: no tag inside a call or an answer; a thought may mention opening tags (they do nothing), but
        no closing one: generation stops there, so the thought would stay open.
      - Plain text between the blocks is allowed.
      - A call or an answer ends its turn. Only punctuation may follow (the token that completes the tag may carry it).
      - `<result>` belongs to the environment: written by the model it is bad format, wherever it stands.
      - The answer holds exactly one `\\boxed{}`, for questions of knowledge too, as the ARPO authors have it.

    Attributes:
        tools: names of the tags that call a tool.
        require_thought: whether a right format has at least one thought, as the ARPO authors demand.
    """

    tools: tuple[str, ...] = ("python", "search")
    require_thought: bool = False

    @property
    def stop(self) -> tuple[str, ...]:
        """The strings that end a turn."""
        return tuple(f"</{name}>" for name in (*self.tools, ANSWER))

    def parse(self, turn: str) -> Parsed:
        """Reads one turn's generated text."""
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
                    return self._final_block(name, turn[begin : tag.start()].strip(), turn[position:])
            elif opened != THINK or closing or name == THINK:
                return Malformed(f"{tag[0]} inside <{opened}>")
        return Nothing() if opened is None else Malformed(f"<{opened}> is not closed")

    def render(self, result: str) -> str:
        """The tool response as the model reads it. Tags in `result` are defused: they could end the block early."""
        defused = self._tags().sub(lambda tag: "&lt;" + tag[0][1:], result)
        return f"\n<{RESULT}> {defused} </{RESULT}>\n"

    def format_error(self, turns: Sequence[str]) -> str | None:
        """What is wrong with the format of a finished path; None when it is right.

        Args:
            turns: the generated text of every turn of the path, without tool responses.
        """
        if not turns:
            return "no turn"
        *calls, last = [self.parse(turn) for turn in turns]
        for parsed in calls:
            if not isinstance(parsed, CallRequest):
                return parsed.reason if isinstance(parsed, Malformed) else "a turn before the last is not a tool call"
        if not isinstance(last, Answer):
            return last.reason if isinstance(last, Malformed) else "no answer"
        if last.text is None:
            return "the answer has not exactly one \\boxed{}"
        if self.require_thought and not any(f"</{THINK}>" in turn for turn in turns):
            return "no thought"
        return None

    def _tags(self) -> re.Pattern[str]:
        return _tag_pattern((*self.tools, THINK, RESULT, ANSWER))

    def _final_block(self, name: str, content: str, rest: str) -> Parsed:
        if any(c.isalnum() or c == "<" for c in rest):
            return Malformed(f"text after </{name}>")
        if name == ANSWER:
            return Answer(boxed(content))
        return CallRequest(name, content) if content else Malformed(f"<{name}> is empty")


def boxed(text: str) -> str | None:
    """The content of the only `\\boxed{...}` in `text` (braces balanced), stripped; None unless there is exactly one.

    An empty box counts as none.
    """
    command = "\\boxed{"
    begin = text.find(command)
    if begin < 0:
        return None
    begin += len(command)
    depth = 1
    for end in range(begin, len(text)):
        escaped = text[end - 1] == "\\" and text[end - 2] != "\\"
        depth += 0 if escaped else {"{": 1, "}": -1}.get(text[end], 0)
        if depth == 0:
            content = text[begin:end].strip()
            return content if content and command not in text[end:] else None
    return None


def _tag_pattern(names: tuple[str, ...]) -> re.Pattern[str]:
    return re.compile(rf"<(/?)({'|'.join(map(re.escape, names))})>")


#: Name -> protocol of the tools with the given tag names.
PROTOCOLS: dict[str, Callable[[tuple[str, ...]], TagProtocol]] = {
    "tags": TagProtocol,
    "tags_with_thought": partial(TagProtocol, require_thought=True),
}
