"""The state of one agent of a `ToolEnv`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from rllib_arpo.envs.protocols.protocol import CallRequest, Parsed
from rllib_arpo.envs.worlds.session import WorldSession
from rllib_arpo.envs.worlds.world import Call, Turn


@dataclass(frozen=True, slots=True)
class PathState:
    """The state of one agent; replaced at every call. Only the sessions change in place.

    Attributes:
        turns: the generated text of every turn.
        segments: the token ids after the prompt, in order: generated tokens, tool response, generated tokens, ...
        num_response_tokens: the length of all segments.
        calls: the tool of every executed call, in order, whatever its outcome.
        executed: names of the tools that ran with status OK.
        sessions: `Tool.make_world` -> the world of this path; no other path shares it.
    """

    turns: tuple[str, ...] = ()
    segments: tuple[np.ndarray, ...] = ()
    num_response_tokens: int = 0
    calls: tuple[str, ...] = ()
    executed: frozenset[str] = frozenset()
    sessions: Mapping[Any, WorldSession] = dataclasses.field(default_factory=dict)

    @property
    def num_tool_calls(self) -> int:
        return len(self.calls)

    def last_turn(self, said: str, parsed: Parsed, num_prompt_tokens: int) -> Turn:
        """The last turn, for worlds that take whole turns."""
        call = None
        if isinstance(parsed, CallRequest) and isinstance(parsed.argument, Mapping):
            call = Call(parsed.name, dict(parsed.argument))
        written = len(self.segments[-1])
        return Turn(said, call, num_prompt_tokens + self.num_response_tokens - written, written)

    def with_generated(self, text: str, token_ids: np.ndarray) -> PathState:
        """The path with one more turn of the model."""
        return dataclasses.replace(self.with_segment(token_ids), turns=(*self.turns, text))

    def with_call(self, name: str, succeeded: bool, response: np.ndarray) -> PathState:
        """The path with an executed call and its response."""
        return dataclasses.replace(
            self.with_segment(response),
            calls=(*self.calls, name),
            executed=self.executed | {name} if succeeded else self.executed,
        )

    def with_segment(self, token_ids: np.ndarray) -> PathState:
        """The path with further tokens, without an executed call."""
        segments = (*self.segments, token_ids)
        return dataclasses.replace(
            self, segments=segments, num_response_tokens=self.num_response_tokens + len(token_ids)
        )
