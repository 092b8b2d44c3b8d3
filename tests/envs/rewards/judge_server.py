"""A stand-in for an OpenAI-compatible endpoint on 127.0.0.1, whose model is a function."""

import json
from collections.abc import Callable
from contextlib import ExitStack

from tests.helpers.web_server import Reply, Request, completion, json_service


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
        self.base_url = f"{self._stack.enter_context(json_service(self._answer)).url}/v1"

    def _answer(self, request: Request) -> Reply:
        self.requests.append(request.body["messages"])
        found = self._reply(request.body["messages"][-1]["content"])
        return Reply({}, found) if isinstance(found, int) else Reply(completion(found))

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
