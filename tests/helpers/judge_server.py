"""A stand-in for an OpenAI-compatible endpoint that judges answers, whose model is a function."""

import json
from collections.abc import Callable
from contextlib import AbstractContextManager

from tests.helpers.web_server import JsonService, Reply, Request, completion, json_service

ANSWER = "Candidate's answer"


def judge_server(model: Callable[[str], str | int]) -> AbstractContextManager[JsonService]:
    """Serves until the block ends; the model: the user's message -> its reply; an int is an HTTP error's status."""

    def answer(request: Request) -> Reply:
        found = model(request.body["messages"][-1]["content"])
        return Reply({}, found) if isinstance(found, int) else Reply(completion(found))

    return json_service(answer)


def fields(message: str) -> dict[str, object]:
    """The texts of a grading request, by their headings."""
    return {name: json.loads(text) for name, text in (line.split(": ", 1) for line in message.splitlines())}


def honest(message: str) -> str:
    """Repeats the answer, compares texts, and says so in its last line."""
    found = fields(message)
    right = found[ANSWER] in found["Reference answers"]
    return f"{found[ANSWER]}\nVERDICT: {'CORRECT' if right else 'INCORRECT'}"
