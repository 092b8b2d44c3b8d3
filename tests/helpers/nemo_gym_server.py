"""A server that speaks as NeMo Gym's resources servers do: each session, named by a cookie, has a counter."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.cookies import SimpleCookie
from typing import Any

from tests.helpers.web_server import Reply, Request, json_service

SCHEMA = {"type": "object", "properties": {"count": {"type": "integer"}}, "required": ["count"]}
TOOLS = [
    {"type": "function", "name": "increment", "description": "Adds a count.", "parameters": SCHEMA, "strict": True},
    {"type": "function", "name": "value", "parameters": {"type": "object", "properties": {}}},
    {"type": "web_search"},
]
ROW = {
    "responses_create_params": {
        "input": [{"role": "developer", "content": "Count."}, {"role": "user", "content": "Add 1 and 2."}],
        "tools": TOOLS,
    },
    "initial_count": 3,
    "expected_count": 6,
}


@dataclass
class Counters:
    """Attributes:
    url: of the server.
    counts: session -> its count.
    verified: the bodies of `/verify` and `/step`.
    closed: sessions that were closed.
    drops: requests whose connection is dropped, and with them all sessions.
    status: of the next answers, instead of their own.
    """

    url: str = ""
    counts: dict[str, int] = field(default_factory=dict)
    verified: list[dict[str, Any]] = field(default_factory=list)
    closed: list[str] = field(default_factory=list)
    drops: int = 0
    status: int = 0


@contextmanager
def nemo_gym_server() -> Iterator[Counters]:
    counters, numbers = Counters(), itertools.count()

    def answer(request: Request) -> Reply | None:
        cookie = SimpleCookie(request.headers.get("cookie", ""))
        session = cookie["session"].value if "session" in cookie else f"s{next(numbers)}"
        if counters.drops:
            counters.drops -= 1
            counters.counts.clear()
            return None
        status, body = answered(counters, session, request.path, request.body or {})
        headers = {"Set-Cookie": f"session={session}; path=/; httponly"}
        return Reply(body, counters.status or status, headers=headers)

    with json_service(answer) as service:
        counters.url = service.url
        yield counters


def answered(counters: Counters, session: str, path: str, body: dict[str, Any]) -> tuple[int, Any]:
    if path in ("/seed_session", "/reset"):
        counters.counts[session] = body["initial_count"]
        return 200, {} if path == "/seed_session" else {"observation": "go", "info": {"supports_explicit_close": True}}
    if path == "/close":
        counters.closed.append(session)
        return 200, {}
    if path in ("/verify", "/step"):
        counters.verified.append(body)
    if path == "/verify":
        return 200, {**body, "reward": float(counters.counts[session] == body["expected_count"])}
    if path == "/step":
        said = body["response"]["output"][-1]["content"][0]["text"]
        counters.counts[session] += int(said)
        done = counters.counts[session] >= body["expected_count"]
        seen = None if done else f"at {counters.counts[session]}"
        return 200, {"observation": seen, "reward": 0.5 * done, "terminated": done, "truncated": False, "info": {}}
    if path == "/increment" and body.get("count") == 13:
        return 500, {"error": "13 is not a count"}
    if path == "/increment":
        counters.counts[session] += body["count"]
        return 200, {"success": True}
    return 200, {"count": counters.counts[session]}
