"""The server of chat completions: one an event loop, on loopback, with a path for every trajectory."""

from __future__ import annotations

import asyncio
import json
import secrets
from typing import Any, Protocol

from rllib_arpo.envs.support.per_loop import PerLoop
from rllib_arpo.envs.worlds.completions import Refused, as_chunk

#: What an agent is told whose trajectory has ended.
ENDED = "This trajectory has ended."
_RETRIES = "x-stainless-retry-count"


class Completes(Protocol):
    """What stands behind a path."""

    async def complete(self, body: Any, *, repeated: bool = False) -> dict[str, Any]: ...

    def refuse(self, reason: str) -> None: ...


class ChatServer:
    """Listens while it has a path.

    Attributes:
        app: the ASGI application.
    """

    def __init__(self) -> None:
        from starlette.applications import Starlette
        from starlette.routing import Route

        self._paths: dict[str, Completes] = {}
        self._changing = asyncio.Lock()
        self._server: Any = None
        self.app = Starlette(
            routes=[
                Route("/{path}/v1/chat/completions", self._complete, methods=["POST"]),
                Route("/{path}/v1/models", self._models),
                Route("/{path}/{other:path}", self._other, methods=["DELETE", "GET", "PATCH", "POST", "PUT"]),
            ]
        )

    async def open(self, behind: Completes) -> str:
        """The base URL of a new path."""
        path = secrets.token_urlsafe(12)
        async with self._changing:
            self._paths[path] = behind
            if self._server is None:
                self._server = await _listening(self.app)
        port = self._server.servers[0].sockets[0].getsockname()[1]
        return f"http://127.0.0.1:{port}/{path}/v1"

    async def close(self, behind: Completes) -> None:
        """Forgets a path, if there is one; after the last one the server ends."""
        async with self._changing:
            self._paths = {path: other for path, other in self._paths.items() if other is not behind}
            if self._paths or self._server is None:
                return
            for listener in self._server.servers:
                listener.close()
            for connection in list(self._server.server_state.connections):
                connection.shutdown()
            self._server = None

    async def _complete(self, request: Any) -> Any:
        from starlette.responses import JSONResponse, Response

        behind = self._paths.get(request.path_params["path"])
        if behind is None:
            return _error(404, ENDED)
        try:
            body = await request.json()
        except ValueError:
            body = None  # Which is refused, and counted, as what is no request.
        try:
            # So says the SDK of OpenAI, and what is built on it, after a time-out.
            answer = await behind.complete(body, repeated=request.headers.get(_RETRIES, "0") != "0")
        except Refused as error:
            return _error(400, str(error))
        if not body.get("stream"):
            return JSONResponse(answer)
        return Response(f"data: {json.dumps(as_chunk(answer))}\n\ndata: [DONE]\n\n", media_type="text/event-stream")

    async def _other(self, request: Any) -> Any:
        behind = self._paths.get(request.path_params["path"])
        if behind is None:
            return _error(404, ENDED)
        asked = f"{request.method} /{request.path_params['other']}"
        reason = f"The endpoint answers POST /v1/chat/completions and GET /v1/models, not {asked:.80}."
        behind.refuse(reason)
        return _error(404, reason)

    async def _models(self, request: Any) -> Any:
        from starlette.responses import JSONResponse

        return JSONResponse(
            {"object": "list", "data": [{"id": "policy", "object": "model", "created": 0, "owned_by": ""}]}
        )


async def _listening(app: Any) -> Any:
    """A `uvicorn.Server` in this loop. Its `serve` would take the process's signals."""
    import uvicorn

    config = uvicorn.Config(
        app, host="127.0.0.1", port=0, lifespan="off", log_config=None, log_level="warning", access_log=False, ws="none"
    )
    config.load()
    server = uvicorn.Server(config)
    server.lifespan = config.lifespan_class(config)
    await server.startup()
    return server


def _error(status: int, message: str) -> Any:
    from starlette.responses import JSONResponse

    return JSONResponse({"error": {"message": message, "type": "invalid_request_error"}}, status_code=status)


SERVERS: PerLoop[ChatServer] = PerLoop(ChatServer)
