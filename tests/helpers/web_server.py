"""A web server on loopback for the checks of the browse tool: it serves given responses and counts requests."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

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
        self._route = route
        super().__init__((host, port), self._handler())

    @property
    def port(self) -> int:
        return self.server_address[1]

    def get_request(self):
        accepted = super().get_request()
        self.num_connections += 1
        return accepted

    def handle_error(self, request, client_address) -> None:
        """Prints nothing, since the tests make clients hang up."""

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        server, route = self, self._route

        class Handler(BaseHTTPRequestHandler):
            def answer(self) -> None:
                server.paths.append(self.path)
                route(self)

            do_GET = do_POST = do_PUT = do_OPTIONS = answer

            def log_message(self, *args) -> None:
                pass

        return Handler


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
