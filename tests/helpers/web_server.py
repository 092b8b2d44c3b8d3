"""Servers on loopback that stand in for those of others: of web pages, and of services that speak JSON."""

import json
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

#: Answers one request: it writes the whole response.
Route = Callable[[BaseHTTPRequestHandler], None]


class WebServer(ThreadingHTTPServer):
    """Attributes:
    paths: of every request, in order.
    num_connections: accepted, with or without a request.
    """

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, host: str, port: int, route: Route):
        self.address_family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.paths: list[str] = []
        self.num_connections = 0
        self.route = route
        super().__init__((host, port), Handler)

    @property
    def port(self) -> int:
        return self.server_address[1]

    def get_request(self):
        accepted = super().get_request()
        self.num_connections += 1
        return accepted

    def handle_error(self, request, client_address) -> None:
        """Prints nothing, since the tests make clients hang up."""


class Handler(BaseHTTPRequestHandler):
    def answer(self) -> None:
        self.server.paths.append(self.path)
        self.server.route(self)

    do_GET = do_POST = do_PUT = do_DELETE = do_OPTIONS = answer

    def log_message(self, *args) -> None:
        pass


@contextmanager
def serving(host: str, route: Route, port: int = 0) -> Iterator[WebServer]:
    """A server that runs in threads of its own until the block ends."""
    server = WebServer(host, port, route)
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()


def reply(
    handler: BaseHTTPRequestHandler, body: bytes | str, status: int = 200, headers: Mapping[str, str] | None = None
) -> None:
    """Writes a whole response; HTML unless `headers` says otherwise."""
    body = body.encode() if isinstance(body, str) else body
    handler.send_response(status)
    headers = {"Content-Type": "text/html; charset=utf-8", "Content-Length": str(len(body)), **(headers or {})}
    for name, value in headers.items():
        handler.send_header(name, value)
    handler.end_headers()
    handler.wfile.write(body)


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
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass
class JsonService:
    """What the server was asked, and what it answers."""

    url: str
    answer: Callable[[Request], Reply | None]
    requests: list[Request] = field(default_factory=list)


@contextmanager
def json_service(answer: Callable[[Request], Reply | None]) -> Iterator[JsonService]:
    """Answers every request with `answer(request)`; None drops the connection."""
    service = JsonService("", answer)

    def route(handler: BaseHTTPRequestHandler) -> None:
        url, body = urlsplit(handler.path), handler.rfile.read(int(handler.headers.get("Content-Length", 0)))
        params = {name: values[0] for name, values in parse_qs(url.query).items()}
        headers = {name.lower(): value for name, value in handler.headers.items()}
        request = Request(handler.command, url.path, params, headers, json.loads(body) if body else None)
        service.requests.append(request)
        found = service.answer(request)
        if found is not None:
            time.sleep(found.delay_s)
            content = found.body if isinstance(found.body, bytes) else json.dumps(found.body)
            reply(handler, content, found.status, {"Content-Type": "application/json", **found.headers})

    with serving("127.0.0.1", route) as server:
        service.url = f"http://127.0.0.1:{server.port}"
        yield service


def completion(text: str | None, finish_reason: str = "stop") -> dict[str, Any]:
    """The body of an OpenAI-compatible endpoint's answer."""
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": finish_reason}
    return {"id": "1", "object": "chat.completion", "created": 0, "model": "m", "choices": [choice]}
