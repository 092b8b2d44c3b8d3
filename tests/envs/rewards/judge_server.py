"""A stand-in for an OpenAI-compatible endpoint on 127.0.0.1, whose model is a function."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import ExitStack
from http.server import BaseHTTPRequestHandler

from tests.helpers import web_server


class JudgeServer:
    """Serves until `close`.

    Args:
        reply: the model: the user's message -> its reply; an int is an HTTP error's status.

    Attributes:
        requests: the messages of every request, in order.
    """

    def __init__(self, reply: Callable[[str], str | int]):
        self.requests: list[list[dict[str, str]]] = []
        self._reply, self._stack = reply, ExitStack()
        server = self._stack.enter_context(web_server.serving("127.0.0.1", self._answer))
        self.base_url = f"http://127.0.0.1:{server.port}/v1"

    def _answer(self, handler: BaseHTTPRequestHandler) -> None:
        body = json.loads(handler.rfile.read(int(handler.headers["Content-Length"])))
        self.requests.append(body["messages"])
        found = self._reply(body["messages"][-1]["content"])
        choice = {"index": 0, "message": {"role": "assistant", "content": found}, "finish_reason": "stop"}
        content = {"id": "1", "object": "chat.completion", "created": 0, "model": body["model"], "choices": [choice]}
        status = found if isinstance(found, int) else 200
        web_server.reply(handler, json.dumps(content), status, {"Content-Type": "application/json"})

    def close(self) -> None:
        self._stack.close()


def fields(message: str) -> dict[str, object]:
    """The texts of a grading request, by their headings."""
    return {name: json.loads(text) for name, text in (line.split(": ", 1) for line in message.splitlines())}


def honest(message: str) -> str:
    """A judge that compares texts, and says so in two lines."""
    found = fields(message)
    right = found["Candidate's answer"] in found["Reference answers"]
    return f"I compare.\nVERDICT: {'CORRECT' if right else 'INCORRECT'}"
