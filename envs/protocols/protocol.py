"""The interface of a protocol, in which a model calls tools and answers.

A protocol reads a turn only from text that the model generated. The environment appends a tool's answer as tokens and
never changes the model's own tokens.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np

from rllib_arpo.envs.protocols.prompts import ASSISTANT, CUT, SYSTEM, USER, Chat, Message, special_texts
from rllib_arpo.envs.question import Question, Shot
from rllib_arpo.envs.support.texts import mapped
from rllib_arpo.envs.tools.tool import THINK, Tool
from rllib_arpo.envs.worlds.world import Opening

#: Placeholder for the text of a message that follows a turn.
REPLY = "\ue000reply\ue001"
_THOUGHT = re.compile(rf"<{THINK}>.*?</{THINK}>", re.DOTALL)
#: The thought, open or empty, with which a template may begin a turn. It may leave it out once the turn has ended.
_BEGUN = re.compile(rf"\s*(<{THINK}>\s*(</{THINK}>\s*)?)?$")


@dataclass(frozen=True, slots=True)
class CallRequest:
    """The turn asks for a tool.

    Attributes:
        argument: the argument's text; or the arguments by name, which `Tool.text_argument` turns into a text.
    """

    name: str
    argument: str | Mapping[str, Any]

    @property
    def argument_text(self) -> str:
        return self.argument if isinstance(self.argument, str) else json.dumps(self.argument, ensure_ascii=False)


@dataclass(frozen=True, slots=True)
class Answer:
    """The turn answers. `text` is what its `\\boxed{}` holds; None without a box, or if boxes hold different things."""

    text: str | None


@dataclass(frozen=True, slots=True)
class Malformed:
    """The turn breaks the protocol; `reason` is one short sentence."""

    reason: str


@dataclass(frozen=True, slots=True)
class Nothing:
    """The turn neither calls nor answers."""


Parsed = CallRequest | Answer | Malformed | Nothing


class Protocol(ABC):
    """How tools are called, for one environment.

    Attributes:
        available: name -> tool, for the model's tools.
        results_within_turn: whether the model reads a result within its turn; otherwise the result is a message.
    """

    available: Mapping[str, Tool]
    results_within_turn: ClassVar[bool] = False

    @property
    @abstractmethod
    def end_tags(self) -> tuple[str, ...]:
        """The strings that end a turn and belong to its text."""

    @property
    def stop(self) -> tuple[str, ...]:
        """The strings at which generation ends."""
        return self.end_tags

    @property
    def functions(self) -> Sequence[Mapping[str, Any]]:
        """JSON schemas that the chat template is given."""
        return ()

    @abstractmethod
    def parse(self, turn: str) -> Parsed:
        """Reads one turn's generated text."""

    @abstractmethod
    def instruction(self, *, answers: bool = True) -> str:
        """The system message for a question without one: how to call the available tools, and how to answer.

        Args:
            answers: whether a `\\boxed{}` answer is compared; a world may score without one.
        """

    @abstractmethod
    def harmless(self, text: str) -> str:
        """A text from elsewhere, in which no tag of the protocol works."""

    def render(self, result: str) -> str:
        """The tool response as the model reads it, with harmless tags."""
        return self.harmless(result)

    def said(self, turn: str) -> str:
        """What a turn says to a world that takes texts: without its thoughts."""
        return _THOUGHT.sub("", turn).strip()

    def reply(self, chat: Chat, text: str, turn: np.ndarray) -> np.ndarray:
        """The text that the model reads as a user's message after its turn, up to the point where it goes on.

        The chat template frames it. Arguments and result are those of `response`.
        """
        return self.replies(chat, [{"role": "user", "content": text}], self.functions, turn)

    def opening(self, chat: Chat, opening: Opening) -> str:
        """The prompt whose messages and functions are the world's, for `Chat.encode_prompt`."""
        messages, functions = mapped((opening.messages, opening.functions), chat.shield)
        return chat.render(messages, functions)

    def replies(
        self, chat: Chat, messages: Sequence[Message], functions: Sequence[Mapping[str, Any]], turn: np.ndarray
    ) -> np.ndarray:
        """The messages that the model reads after its turn, up to the point where it goes on; as `reply`."""
        safe = mapped(messages, lambda text: chat.shield(self.harmless(text)))
        return without_end(chat.encode(after_turn(chat, functions, *safe), turn), turn)

    @abstractmethod
    def example(self, shot: Shot, shield: Callable[[str], str] = str) -> list[Message]:
        """The messages that show a worked example, with its call if the model has the tool.

        Args:
            shield: applied to the shot's texts.
        """

    @abstractmethod
    def turn(self, chat: Chat, text: str, name: str, arguments: Mapping[str, Any]) -> str:
        """The turn that says `text`, which may be empty, and makes a call; it ends with the call.

        Raises:
            ValueError: `parse` would not read it as this call.
        """

    @abstractmethod
    def response(self, chat: Chat, request: CallRequest, result: str, turn: np.ndarray) -> np.ndarray:
        """The text that the model reads after its call, up to the point where it goes on.

        Args:
            result: the tool's text, with any content; the protocol prevents it from ending its block.
            turn: [n] int32, the tokens of the calling turn, as sampled.

        Returns:
            [m] int32 token ids, to be appended to `turn`.
        """

    def prompt(self, chat: Chat, question: Question, instruction: str | None = None) -> np.ndarray:
        """The prompt's token ids, [p] int32: instruction, worked examples, question.

        Args:
            instruction: the system message for a question without one; None: the protocol's, "": none.
        """
        messages = list(question.messages)
        own = messages.pop(0) if messages[0][0] == "system" else None
        head = own or ("system", self.instruction() if instruction is None else instruction)
        shots = [message for shot in question.shots for message in self.example(shot, chat.shield)]
        # Users' messages and shots come from data; the others may contain the protocol's own tags.
        shielded = [
            {"role": role, "content": chat.shield(text) if role == "user" else text} for role, text in (head, *messages)
        ]
        system = shielded[:1] if head[1] else []
        return chat.encode_prompt(chat.render([*system, *shots, *shielded[1:]], self.functions))

    def format_error(self, turns: Sequence[str]) -> str | None:
        """The format error of a finished path; None if the format is right.

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
        return "the answer does not have exactly one \\boxed{}" if last.text is None else None


def after_turn(chat: Chat, functions: Sequence[Mapping[str, Any]], *messages: Message) -> str:
    """The template's text after the assistant's turn, with messages, up to the point where the model goes on."""
    before = [{"role": "user", "content": USER}, {"role": "assistant", "content": ASSISTANT}]
    return chat.render([*before, *messages], functions).partition(ASSISTANT)[2]


def check_goes_on(chat: Chat, functions: Sequence[Mapping[str, Any]], role: str, name: str = "") -> None:
    """Checks that the template only adds text when a message of `role` follows a turn: what the model has read stays.

    Args:
        name: of the tool, where the message is a tool's.

    Raises:
        ValueError: it does not, so the model would not read what the template writes.
        TemplateError: the template refuses such messages.
    """
    if not chat.has_template:
        return
    asked = [{"role": "system", "content": SYSTEM}, {"role": "user", "content": USER}]
    message = {"role": role, "content": REPLY, **({"name": name} if name else {})}
    whole = chat.render([*asked, {"role": "assistant", "content": ASSISTANT}, message], functions)
    before, _, after = whole.partition(ASSISTANT)
    fault = None
    if not special_beginning(chat, after):
        fault = "does not end the assistant's messages with a special token"
    elif REPLY not in after:
        fault = f"has no support for messages of the role {role!r} after a turn"
    elif _BEGUN.sub("", before) != _BEGUN.sub("", chat.render(asked, functions)):
        fault = f"changes what it has written before a turn when a message of the role {role!r} follows"
    if fault:
        raise ValueError(f"the chat template of {chat.name} {fault}")


def without_end(tokens: np.ndarray, turn: np.ndarray) -> np.ndarray:
    """What follows a turn, without the token that ends it, if the model has written that."""
    return tokens[1:] if len(turn) and len(tokens) and turn[-1] == tokens[0] else tokens


def end_of_turn(chat: Chat) -> str:
    """The text of the special token with which the template ends the assistant's messages; empty: there is none."""
    messages = [{"role": "user", "content": USER}, {"role": "assistant", "content": ASSISTANT}]
    end = chat.render(messages, generation_prompt=False).rpartition(ASSISTANT)[2]
    return special_beginning(chat, end)


def special_beginning(chat: Chat, text: str) -> str:
    """The text of the special token with which `text` begins; empty: it begins with none."""
    return max(
        (token for token in special_texts(chat.tokenizer) if token and text.startswith(token)), key=len, default=""
    )


def defused(result: str, tags: re.Pattern[str]) -> str:
    """A tool's text without working tags, which could end its block early, or call and answer in the model's name."""
    return tags.sub(lambda tag: "&lt;" + tag[0][1:], result.replace(CUT, ""))


def only_punctuation(text: str) -> bool:
    """Whether `text` may follow the tag that ends a turn: the token that completes the tag may carry it."""
    return not any(c.isalnum() or c == "<" for c in text)
