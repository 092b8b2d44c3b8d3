"""What the model reads next where a world takes turns: its conversation goes on, or another one does."""

import contextlib
from collections.abc import Iterator
from functools import partial

import numpy as np

from rllib_arpo.envs.errors import BrokenToolError, ContractError
from rllib_arpo.envs.path_state import PathState
from rllib_arpo.envs.protocols.prompts import Chat
from rllib_arpo.envs.protocols.protocol import Protocol
from rllib_arpo.envs.support.texts import first_line
from rllib_arpo.envs.tools.tool import cut
from rllib_arpo.envs.worlds.world import BEGINS, Opening, Reply


class UnreadableError(BrokenToolError):
    """The chat template cannot render what a world wants the model to read."""


@contextlib.contextmanager
def _rendering() -> Iterator[None]:
    from jinja2 import TemplateError

    try:
        yield
    except TemplateError as error:
        raise UnreadableError(f"The chat template cannot render these messages: {first_line(error)}.") from error


@_rendering()
def first_messages(protocol: Protocol, chat: Chat, opening: Opening) -> np.ndarray:
    """The tokens of a world's prompt, [p] int32; raises an `UnreadableError`."""
    return protocol.opening(chat, opening)


@_rendering()
def next_messages(
    protocol: Protocol, chat: Chat, state: PathState, reply: Reply, max_tokens: int
) -> tuple[np.ndarray, bool]:
    """The tokens of a reply's messages, [m] int32, and whether they are a new context (`Turn.new_context`).

    Args:
        state: the path, with the turn to which the world replied.
        reply: its text, as of an error, is a message of the user where it has no messages.
        max_tokens: longer messages of a conversation that goes on are cut in the middle.

    Raises:
        ContractError: the reply follows a turn that is not on the path.
        UnreadableError: the world may say something else.
    """
    if reply.follows not in (None, BEGINS, *range(len(state.turns))):
        raise ContractError(f"A reply after {len(state.turns)} turns follows turn {reply.follows!r:.80}.")
    if reply.follows == BEGINS:
        return protocol.opening(chat, Opening(reply.messages, reply.functions)), True
    messages = reply.messages or ({"role": "user", "content": reply.text},)
    limit = partial(cut, chat.tokenizer, max_tokens=max_tokens)
    limited = [{**message, "content": limit(message["content"])} for message in messages]
    written = state.context if reply.follows is None else state.written[reply.follows]
    tokens = protocol.replies(chat, limited, reply.functions, written[-1])
    return (tokens, False) if reply.follows is None else (np.concatenate([*written, tokens]), True)
