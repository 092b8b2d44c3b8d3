"""A program that asks the model by chat completions, as a world: `async def agent(endpoint, row) -> float`."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from rllib_arpo.envs.errors import BrokenToolError, DataError
from rllib_arpo.envs.question import Question
from rllib_arpo.envs.support.texts import first_line
from rllib_arpo.envs.worlds.chat_server import ENDED, SERVERS
from rllib_arpo.envs.worlds.completions import ChatRequest, Refused, completion, read_message, read_request
from rllib_arpo.envs.worlds.program import ProgramWorld
from rllib_arpo.envs.worlds.world import BEGINS, Opening, Reply, WholeTurn


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The model, as the agent of one trajectory asks it; any key and any name of a model will do.

    Attributes:
        base_url: on loopback, up to and with "/v1": for this process and others.
        app: the ASGI application behind it, for clients in this event loop: `httpx.ASGITransport(endpoint.app)`.
    """

    base_url: str
    app: Any


class EndpointWorld(ProgramWorld):
    """Runs a program whose requests are conversations: one goes on where a request repeats it and adds messages.

    The model reads what a request adds; what was sampled stays as it was. A request that continues no conversation of
    its run (a shortened history, an agent below this one) begins another. Requests are answered one after the other, in
    the order in which they come; one that a client repeats gets the answer of the first. A program that fails after a
    refused request masks its trajectory.
    """

    takes_turns = True

    def __init__(self, program: Any, name: str, refusals: list[str]):
        """Args: `refusals` gets why requests of all worlds of a maker were refused."""
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
        server = SERVERS.get()
        self._endpoint = Endpoint(await server.open(self), server.app)
        return await self._begun(question, self._endpoint)

    async def act(self, action: Any) -> Reply:
        reply = await self._answered(action)
        return Reply("", done=True) if reply is None else reply

    async def close(self) -> None:
        self._closed = True
        if self._waits:
            assert self._said is not None
            self._said.set_exception(Refused(ENDED))
        await super().close()
        await SERVERS.get().close(self)

    async def complete(self, body: Any, *, repeated: bool = False) -> dict[str, Any]:
        """The answer to a request.

        Args:
            body: the JSON of the request.
            repeated: whether the client says that it has sent the request before.

        Raises:
            Refused: it adds nothing to a conversation, or asks for what the endpoint or the template does not do.
        """
        try:
            request = read_request(body)
            before = [answer for asked, answer in self._requests if asked == request] if repeated else []
            if not before:
                # A task of its own: a client that waits no longer must not end the turn.
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
        """What a request adds to the longest conversation that it repeats (of equal ones the latest), or all of it.

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
