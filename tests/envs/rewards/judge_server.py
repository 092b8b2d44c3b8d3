"""A stand-in for an OpenAI-compatible endpoint on 127.0.0.1, whose model is a function."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Server(ThreadingHTTPServer):
    #: Connections that wait to be taken: of many environments at once.
    request_queue_size = 64


class JudgeServer:
    """Serves until `close`.

    Args:
        reply: the model: the user's message -> its reply; an int is an HTTP error's status.

    Attributes:
        requests: the messages of every request, in order.
    """

    def __init__(self, reply: Callable[[str], str | int]):
        self.requests: list[list[dict[str, str]]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                outer.requests.append(body["messages"])
                found = reply(body["messages"][-1]["content"])
                message = {"role": "assistant", "content": found}
                content = {
                    "id": "1",
                    "object": "chat.completion",
                    "created": 0,
                    "model": body["model"],
                    "choices": [{"index": 0, "message": message, "finish_reason": "stop"}],
                }
                payload = json.dumps(content).encode()
                self.send_response(found if isinstance(found, int) else 200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(payload)))
                self.end_headers()
                self.wfile.write(payload)

            def log_message(self, *args):
                pass

        self._server = Server(("127.0.0.1", 0), Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,), daemon=True)
        self._thread.start()

    @property
    def base_url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}/v1"

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def fields(message: str) -> dict[str, object]:
    """The texts of a grading request, by their headings."""
    return {name: json.loads(text) for name, text in (line.split(": ", 1) for line in message.splitlines())}


def honest(message: str) -> str:
    """A judge that compares texts, and says so in two lines."""
    found = fields(message)
    right = found["Candidate's answer"] in found["Reference answers"]
    return f"I compare.\nVERDICT: {'CORRECT' if right else 'INCORRECT'}"
