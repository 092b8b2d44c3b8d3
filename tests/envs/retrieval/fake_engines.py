"""A small server on 127.0.0.1 that answers like a search engine, or fails in a given way."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit


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

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            length = int(self.headers.get("Content-Length", 0))
            url, body = urlsplit(self.path), self.rfile.read(length)
            params = {name: values[0] for name, values in parse_qs(url.query).items()}
            headers = {name.lower(): value for name, value in self.headers.items()}
            request = Request(self.command, url.path, params, headers, json.loads(body) if body else None)
            engine.requests.append(request)
            reply = engine.answer(request)
            if reply is None:
                self.close_connection = True
                return
            time.sleep(reply.delay_s)
            content = reply.body if isinstance(reply.body, bytes) else json.dumps(reply.body).encode()
            self.send_response(reply.status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_POST = do_GET

        def log_message(self, *args):
            return None

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 128

        def handle_error(self, request, client_address):
            return None

    server = Server(("127.0.0.1", 0), Handler)
    engine.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield engine
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
