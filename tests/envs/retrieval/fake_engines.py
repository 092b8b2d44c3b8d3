"""A small server on 127.0.0.1 that answers like a search engine, or fails in a given way."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.helpers import web_server


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    params: dict[str, str]
    headers: dict[str, str]
    body: Any


@dataclass(frozen=True)
class Reply:
    """`body`: bytes, or what becomes JSON."""

    body: Any
    status: int = 200
    delay_s: float = 0.0


@dataclass
class FakeEngine:
    """What the server was asked, and what it answers."""

    url: str
    answer: Callable[[Request], Reply | None]
    requests: list[Request] = field(default_factory=list)


@contextmanager
def serve(answer: Callable[[Request], Reply | None]) -> Iterator[FakeEngine]:
    """Answers every request with `answer(request)`; None drops the connection."""
    engine = FakeEngine("", answer)

    def route(handler: BaseHTTPRequestHandler) -> None:
        url, body = urlsplit(handler.path), handler.rfile.read(int(handler.headers.get("Content-Length", 0)))
        params = {name: values[0] for name, values in parse_qs(url.query).items()}
        headers = {name.lower(): value for name, value in handler.headers.items()}
        request = Request(handler.command, url.path, params, headers, json.loads(body) if body else None)
        engine.requests.append(request)
        reply = engine.answer(request)
        if reply is not None:
            time.sleep(reply.delay_s)
            content = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body)
            web_server.reply(handler, content, reply.status, {"Content-Type": "application/json"})

    with web_server.serving("127.0.0.1", route) as server:
        engine.url = f"http://127.0.0.1:{server.port}"
        yield engine
