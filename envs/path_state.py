"""The state of one agent of a `ToolEnv`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from rllib_arpo.envs.protocols.protocol import CallRequest, Parsed
from rllib_arpo.envs.worlds.session import WorldSession
from rllib_arpo.envs.worlds.world import Call, WholeTurn


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
