"""OpenAI's chat completions: reads requests as messages for chat templates, and writes turns as answers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from rllib_arpo.envs.support.texts import mapped, valid_unicode
from rllib_arpo.envs.worlds.world import WholeTurn

_ROLES = ("system", "user", "assistant", "tool")


class Refused(Exception):
    """A request that the endpoint does not answer; the client reads the message."""


@dataclass(frozen=True, slots=True)
class ChatRequest:
    """A request. Keys that do not matter for what the model reads are left out, so that equal requests are equal.

    Attributes:
        messages: {"role", "content"}, with "tool_calls" (an "id" if it is given, arguments as objects), "tool_call_id"
            and "name".
        functions: the request's "tools".
    """

    messages: tuple[Mapping[str, Any], ...]
    functions: tuple[Mapping[str, Any], ...]

    def continues(self, talk: ChatRequest) -> bool:
        """Whether this request repeats the conversation `talk` and adds messages."""
        known = len(talk.messages)
        repeats = self.messages[:known] == talk.messages and self.functions == talk.functions
        return repeats and len(self.messages) > known


def read_request(body: Any) -> ChatRequest:
    """What a request asks. Its sampling parameters are ignored, since the run sets them.

    Raises:
        Refused: it does not ask for one completion of texts.
    """
    if not isinstance(body, Mapping) or not isinstance(body.get("messages"), list) or not body["messages"]:
        raise Refused("A request must be a JSON object with a list of messages.")
    if body.get("n") not in (None, 1):
        raise Refused("The endpoint gives one choice: n must be 1.")
    names: dict[str, str] = {}
    messages = tuple(read_message(message, names) for message in body["messages"])
    tools = body.get("tools") or []
    try:
        named = isinstance(tools, list) and all(isinstance(tool["function"]["name"], str) for tool in tools)
    except (KeyError, TypeError):
        named = False
    if not named:
        raise Refused("The tools of a request must be a list of functions in OpenAI's format.")
    return ChatRequest(messages, tuple(mapped(tools, valid_unicode)))


def read_message(message: Any, names: dict[str, str]) -> Mapping[str, Any]:
    """A message as templates take it.

    Args:
        names: id of an earlier call -> its function's name; the calls of this message are added.

    Raises:
        Refused: it has parts that are not text, or calls that are not JSON.
    """
    try:
        content = message.get("content") or ""
        if not isinstance(content, str):
            if any(part["type"] != "text" for part in content):
                raise Refused("A message must have text only.")
            content = "".join(part["text"] for part in content)
        role = "system" if message["role"] == "developer" else message["role"]
        if role not in _ROLES:
            raise Refused(f"The role of a message must be one of {', '.join(_ROLES)}, not {role!r:.80}.")
        read = {"role": role, "content": valid_unicode(content)}
        if message.get("tool_calls"):
            read["tool_calls"] = [_read_call(call, names) for call in message["tool_calls"]]
        if role == "tool":
            read["name"] = message.get("name") or names.get(message["tool_call_id"], "")
            read["tool_call_id"] = message["tool_call_id"]
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise Refused(f"A message is not in OpenAI's format ({type(error).__name__}: {error}).") from error
    return read


def _read_call(call: Mapping[str, Any], names: dict[str, str]) -> dict[str, Any]:
    function = call["function"]
    names[call.get("id", "")] = function["name"]
    given = function["arguments"]
    arguments = mapped(json.loads(given or "{}") if isinstance(given, str) else given, valid_unicode)
    if not isinstance(arguments, dict):
        raise ValueError("the arguments of a call are no object")
    read = {"type": "function", "function": {"name": function["name"], "arguments": arguments}}
    return {"id": call["id"], **read} if call.get("id") else read


def completion(turn: WholeTurn, number: int, model: str) -> dict[str, Any]:
    """A turn as the answer to its trajectory's `number`th request; a fork that repeats it gets an equal one."""
    message: dict[str, Any] = {"role": "assistant", "content": turn.text or None}
    if turn.call is not None:
        function = {"name": turn.call.tool, "arguments": json.dumps(turn.call.arguments)}
        message["tool_calls"] = [{"id": f"call_{number}", "type": "function", "function": function}]
    reason = "stop" if turn.call is None else "tool_calls"
    return {
        "id": f"chatcmpl-{number}",
        "object": "chat.completion",
        "created": 0,
        "model": model,
        "choices": [{"index": 0, "message": message, "finish_reason": reason, "logprobs": None}],
        "usage": {
            "prompt_tokens": turn.num_read,
            "completion_tokens": turn.num_written,
            "total_tokens": turn.num_read + turn.num_written,
        },
    }


def as_chunk(answer: Mapping[str, Any]) -> dict[str, Any]:
    """The answer as the only chunk of a stream."""
    (choice,) = answer["choices"]
    delta = dict(choice["message"])
    if "tool_calls" in delta:
        delta["tool_calls"] = [{"index": i, **call} for i, call in enumerate(delta["tool_calls"])]
    chunk = {"index": 0, "delta": delta, "finish_reason": choice["finish_reason"], "logprobs": None}
    return {**answer, "object": "chat.completion.chunk", "choices": [chunk]}
