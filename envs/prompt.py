"""What the model has read and written on a path, and what it reads next: a prompt, the messages of a world."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from rllib_arpo.envs.env_config import ToolEnvConfig
from rllib_arpo.envs.errors import BrokenToolError, ContractError, DataError
from rllib_arpo.envs.protocols.function_calling import no_tool_support
from rllib_arpo.envs.protocols.prompts import Chat
from rllib_arpo.envs.protocols.protocol import CallRequest, Parsed, Protocol
from rllib_arpo.envs.question import Question
from rllib_arpo.envs.rewards.compose import needs_answers
from rllib_arpo.envs.support.texts import first_line
from rllib_arpo.envs.tools.tool import cut
from rllib_arpo.envs.worlds.session import WorldSession
from rllib_arpo.envs.worlds.world import BEGINS, Call, Opening, Reply, WholeTurn, World


@dataclass(frozen=True, slots=True)
class PathState:
    """The state of one agent; every call replaces it. Only the sessions change in place.

    Attributes:
        turns: the generated text of every turn.
        context: the pieces of the token ids that the model has read and written in the present conversation, in order:
            prompt, generated tokens, tool response, generated tokens, ...
        written: the context as it was after each turn of the model.
        calls: the tool of every executed call, in order, whatever its outcome.
        executed: names of the tools that ran with status OK.
        sessions: `Tool.make_world` -> the world of this path; no other path shares it.
    """

    turns: tuple[str, ...] = ()
    context: tuple[np.ndarray, ...] = ()
    written: tuple[tuple[np.ndarray, ...], ...] = ()
    calls: tuple[str, ...] = ()
    executed: frozenset[str] = frozenset()
    sessions: Mapping[Any, WorldSession] = dataclasses.field(default_factory=dict)

    @property
    def num_tool_calls(self) -> int:
        return len(self.calls)

    @property
    def num_tokens(self) -> int:
        """The length of the context."""
        return sum(map(len, self.context))

    def last_turn(self, said: str, parsed: Parsed) -> WholeTurn:
        """The last turn, for worlds that take whole turns."""
        call = None
        if isinstance(parsed, CallRequest) and isinstance(parsed.argument, Mapping):
            call = Call(parsed.name, dict(parsed.argument))
        written = len(self.context[-1])
        return WholeTurn(said, call, self.num_tokens - written, written)

    def with_generated(self, text: str, token_ids: np.ndarray) -> PathState:
        """The path with one more turn of the model."""
        context = (*self.context, token_ids)
        return dataclasses.replace(self, turns=(*self.turns, text), context=context, written=(*self.written, context))

    def with_call(self, name: str, succeeded: bool, response: np.ndarray, new_context: bool = False) -> PathState:
        """The path with an executed call and its response."""
        return dataclasses.replace(
            self.with_response(response, new_context),
            calls=(*self.calls, name),
            executed=self.executed | {name} if succeeded else self.executed,
        )

    def with_response(self, token_ids: np.ndarray, new_context: bool = False) -> PathState:
        """The path with further tokens, which extend or replace the context, without an executed call."""
        return dataclasses.replace(self, context=(token_ids,) if new_context else (*self.context, token_ids))


def with_opening(question: Question, opening: str) -> Question:
    """The question with its world's text: at the end of its last message if that is the user's, otherwise as a new one.

    Raises:
        DataError: neither the question nor the world asks anything, or the assistant would speak twice.
    """
    if not opening:
        if not question.messages:
            raise DataError(f"{question.source}: neither the task nor the world asks anything.")
        if question.messages[-1][0] == "assistant":
            raise DataError(
                f"{question.source}: the prompt ends with a message of the assistant, who begins a new one."
            )
        return question
    messages = question.messages
    if not messages or messages[-1][0] != "user":
        return dataclasses.replace(question, messages=(*messages, ("user", opening)))
    text = messages[-1][1]
    asked = f"{text}\n\n{opening}" if text else opening
    return dataclasses.replace(question, messages=(*messages[:-1], ("user", asked)))


def asked_alone(question: Question, config: ToolEnvConfig) -> Question:
    """A question without a world, if it can be asked alone.

    Raises:
        DataError: it asks nothing, or no right answer is known though the reward needs one.
    """
    if not question.answers and needs_answers(config.reward):
        raise DataError(
            f"{question.source}: no right answer (a text, a number, or a list of them): only a world or a reward of "
            "your own can do without one."
        )
    return with_opening(question, "")


def build_prompt(
    chat: Chat, protocol: Protocol, question: Question, config: ToolEnvConfig, instruction: str | None = None
) -> np.ndarray:
    """The prompt's token ids, [p] int32. For `instruction` see `Protocol.prompt`.

    Raises:
        DataError: see `checked_prompt`; or the chat template refuses the messages.
    """
    try:
        with _rendering():
            prompt = protocol.prompt(chat, question, instruction)
    except UnreadableError as error:
        raise DataError(f"{question.source}: {error}") from error
    return checked_prompt(prompt, question, config)


def checked_prompt(prompt: np.ndarray, question: Question, config: ToolEnvConfig) -> np.ndarray:
    """The prompt, if it is short enough.

    Raises:
        DataError: it is longer than `max_prompt_tokens`, or leaves no room for a response.
    """
    if config.max_prompt_tokens is not None and len(prompt) > config.max_prompt_tokens:
        limit = f"max_prompt_tokens = {config.max_prompt_tokens}"
        raise DataError(f"{question.source}: the prompt has {len(prompt)} tokens, more than {limit}.")
    if len(prompt) >= config.max_context_tokens:
        raise DataError(
            f"{question.source}: the prompt has {len(prompt)} tokens, which leaves no room for a response within"
            f" max_context_tokens = {config.max_context_tokens}."
        )
    return prompt


def prompt_of_world(
    chat: Chat, protocol: Protocol, question: Question, config: ToolEnvConfig, world: World, opening: str | Opening
) -> np.ndarray:
    """The prompt's token ids, [p] int32, of a question whose world has begun with `opening`.

    Raises:
        DataError: see `checked_prompt`.
        UnreadableError: the chat template cannot render the opening.
    """
    if isinstance(opening, Opening):
        return checked_prompt(first_messages(protocol, chat, opening), question, config)
    instruction = world.instruction
    if instruction is None:
        answers = type(world).score is World.score and not world.pays_by_replies
        instruction = protocol.instruction(answers=answers)
    return build_prompt(chat, protocol, with_opening(question, opening), config, instruction)


class UnreadableError(BrokenToolError):
    """The chat template cannot render what the model is to read."""


@contextlib.contextmanager
def _rendering() -> Iterator[None]:
    from jinja2 import TemplateError

    try:
        yield
    except TemplateError as error:
        raise UnreadableError(f"The chat template cannot render these messages: {first_line(error)}.") from error


@_rendering()
def first_messages(protocol: Protocol, chat: Chat, opening: Opening) -> np.ndarray:
    """The tokens of a world's prompt, [p] int32.

    Raises:
        UnreadableError: the template cannot render it, or leaves out its functions.
    """
    prompt = protocol.opening(chat, opening)
    names = [one["function"]["name"] for one in opening.functions]
    if names and (fault := no_tool_support(chat, prompt, names)):
        raise UnreadableError(
            f"The model would not read its tools: {fault}; choose a model with such a template (Qwen2.5, Qwen3)."
        )
    return chat.encode_prompt(prompt)


@_rendering()
def next_messages(
    protocol: Protocol, chat: Chat, state: PathState, reply: Reply, max_tokens: int
) -> tuple[np.ndarray, bool]:
    """The tokens of a reply's messages, [m] int32, and whether they are a new context (`Turn.new_context`).

    Args:
        state: the path, with the turn to which the world replied.
        reply: if it has no messages (an error has none), its text becomes a message of the user.
        max_tokens: longer messages of a conversation that goes on are cut in the middle.

    Raises:
        ContractError: the reply follows a turn that is not on the path.
        UnreadableError: the template cannot render the reply; the world may give another one.
    """
    if reply.follows not in (None, BEGINS, *range(len(state.turns))):
        raise ContractError(f"A reply after {len(state.turns)} turns follows turn {reply.follows!r:.80}.")
    if reply.follows == BEGINS:
        return first_messages(protocol, chat, Opening(reply.messages, reply.functions)), True
    messages = reply.messages or ({"role": "user", "content": reply.text},)
    limit = partial(cut, chat.tokenizer, max_tokens=max_tokens)
    limited = [{**message, "content": limit(message["content"])} for message in messages]
    written = state.context if reply.follows is None else state.written[reply.follows]
    tokens = protocol.replies(chat, limited, reply.functions, written[-1])
    return (tokens, False) if reply.follows is None else (np.concatenate([*written, tokens]), True)
