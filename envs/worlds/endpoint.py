"""A program that asks the model by chat completions, as a world: `async def agent(endpoint, row) -> float`."""

from __future__ import annotations

import asyncio
import json
import secrets
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from rllib_arpo.envs.errors import BrokenToolError, DataError
from rllib_arpo.envs.question import Question
from rllib_arpo.envs.support.per_loop import PerLoop
from rllib_arpo.envs.support.texts import first_line
from rllib_arpo.envs.worlds.completions import ChatRequest, Refused, as_chunk, completion, read_message, read_request
from rllib_arpo.envs.worlds.program import ProgramWorld
from rllib_arpo.envs.worlds.world import BEGINS, Opening, Reply, WholeTurn

#: The error that an agent reads after its trajectory has ended.
ENDED = "This trajectory has ended."
#: The header in which OpenAI's SDK, and what is built on it, says how often it has sent a request before.
_RETRIES = "x-stainless-retry-count"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The model, as the agent of one trajectory asks it; any key and any name of a model will do.

    Attributes:
        base_url: on loopback, up to and with "/v1", for clients in this process and others.
        app: the ASGI application behind it, for clients in this event loop: `httpx.ASGITransport(endpoint.app)`.
    """

    base_url: str
    app: Any


class EndpointWorld(ProgramWorld):
    """Runs a program that sends requests. A request continues a conversation if it repeats it and adds messages.

    The model reads only what a request adds; sampled tokens stay as they were. A request that continues no conversation
    of its run (a shortened history, an agent below this one) begins another. Requests are answered one after the other,
    in the order in which they come; if a client repeats one, it gets the first one's answer. If a program fails after a
    refused request, its trajectory is masked.
    """

    takes_turns = True

    def __init__(self, program: Any, name: str, refusals: list[str]):
        """`refusals` collects why requests were refused, in all worlds of a maker."""
        super().__init__(program, name)
        self._refusals = refusals
        missing = [package for package in ("starlette", "uvicorn") if find_spec(package) is None]
        if missing:
            raise ValueError(f"{self._name}: an endpoint needs {missing[0]} (pip install rllib-arpo[tools]).")
        #: The conversation after each turn: the request's messages and the answer to it, and its functions.
        self._talks: list[ChatRequest] = []
        self._requests: list[tuple[ChatRequest, asyncio.Task[dict[str, Any]]]] = []
        self._one_at_a_time = asyncio.Lock()
        self._closed, self._refused = False, 0

    async def reset(self, question: Question) -> Opening:
        server = _SERVERS.get()
        self._endpoint = Endpoint(await server.open(self), server.app)
        return await self._begun(question, self._endpoint)

    async def close(self) -> None:
        self._closed = True
        if self._waits:
            assert self._said is not None
            self._said.set_exception(Refused(ENDED))
        await super().close()
        await _SERVERS.get().close(self)

    async def complete(self, body: Any, *, repeated: bool = False) -> dict[str, Any]:
        """The answer to a request.

        Args:
            body: the JSON of the request.
            repeated: whether the client says that it has sent the request before.

        Raises:
            Refused: it adds nothing to a conversation, or asks for more than the endpoint or the template can do.
        """
        try:
            request = read_request(body)
            before = [answer for asked, answer in self._requests if asked == request] if repeated else []
            if not before:
                # A task of its own: a client that stops waiting must not end the turn.
                answer = asyncio.create_task(self._answer(request, str(body.get("model", ""))))
                answer.add_done_callback(lambda task: task.cancelled() or task.exception())
                self._requests.append((request, answer))
                before.append(answer)
            return await asyncio.shield(before[-1])
        except Refused as error:
            self.refuse(str(error))
            raise

    def take_refused(self) -> int:
        number = len(self._refusals)
        self._refusals.clear()
        return number

    def refuse(self, reason: str) -> None:
        """Counts a request that is refused, unless the trajectory has ended."""
        if not self._closed:
            self._refused += 1
            self._refusals.append(reason)

    async def _answer(self, request: ChatRequest, model: str) -> dict[str, Any]:
        async with self._one_at_a_time:
            if self._closed:
                raise Refused(ENDED)
            turn: WholeTurn = await self._ask(
                self._reply(request) if self._talks else Opening(request.messages, request.functions)
            )
            if turn.refused:
                raise Refused(turn.refused)
            answer = completion(turn, len(self._talks) + 1, model)
            said = read_message(answer["choices"][0]["message"], {})
            self._talks.append(ChatRequest((*request.messages, said), request.functions))
            return answer

    def _reply(self, request: ChatRequest) -> Reply:
        """What a request adds to the longest (then latest) conversation that it repeats; if it repeats none, all of it.

        Raises:
            Refused: it adds nothing.
        """
        if request in self._talks:
            raise Refused("This request adds no message to the conversation.")
        continued = [turn for turn, talk in enumerate(self._talks) if request.continues(talk)]
        if not continued:
            return Reply("", messages=request.messages, functions=request.functions, follows=BEGINS)
        turn = max(continued, key=lambda turn: (len(self._talks[turn].messages), turn))
        added = request.messages[len(self._talks[turn].messages) :]
        follows = None if turn == len(self._talks) - 1 else turn
        return Reply("", messages=added, functions=request.functions, follows=follows)

    def _result(self) -> float:
        try:
            return super()._result()
        except (BrokenToolError, DataError):
            raise
        except Exception as error:
            if not self._refused:
                raise
            failed = f"{type(error).__name__}: {first_line(error)}"
            raise BrokenToolError(f"{self._name} failed after a refused request ({failed}).") from error


class ChatServer:
    """The server of one event loop, on loopback, with a path for every trajectory. It listens while it has a path.

    Attributes:
        app: the ASGI application.
    """

    def __init__(self) -> None:
        from starlette.applications import Starlette
        from starlette.routing import Route

        self._paths: dict[str, EndpointWorld] = {}
        self._changing = asyncio.Lock()
        self._server: Any = None
        self.app = Starlette(
            routes=[
                Route("/{path}/v1/chat/completions", self._complete, methods=["POST"]),
                Route("/{path}/v1/models", self._models),
                Route("/{path}/{other:path}", self._other, methods=["DELETE", "GET", "PATCH", "POST", "PUT"]),
            ]
        )

    async def open(self, behind: EndpointWorld) -> str:
        """The base URL of a new path."""
        path = secrets.token_urlsafe(12)
        async with self._changing:
            self._paths[path] = behind
            if self._server is None:
                self._server = await _listening(self.app)
        port = self._server.servers[0].sockets[0].getsockname()[1]
        return f"http://127.0.0.1:{port}/{path}/v1"

    async def close(self, behind: EndpointWorld) -> None:
        """Removes the path of a world, if it has one; the server ends with its last path."""
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
            body = None  # `complete` refuses and counts it.
        try:
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


_SERVERS: PerLoop[ChatServer] = PerLoop(ChatServer)
