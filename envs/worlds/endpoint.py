"""A program that asks the model by chat completions, as a world: `async def agent(endpoint, row) -> float`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

from rllib_arpo.envs.errors import BrokenToolError, DataError
from rllib_arpo.envs.question import Question
from rllib_arpo.envs.support.texts import first_line
from rllib_arpo.envs.worlds.chat_server import SERVERS
from rllib_arpo.envs.worlds.completions import Refused, completion, read_message, read_request
from rllib_arpo.envs.worlds.program import ProgramWorld
from rllib_arpo.envs.worlds.world import Opening, Reply, Turn


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
    """Runs a program whose requests become one conversation: each repeats the one before and its answer, and adds.

    The model reads what a request adds; what was sampled stays as it was. A request that does not continue the
    conversation (a shortened history, a second agent) is refused and counted. A program that fails after that masks
    its trajectory.
    """

    takes_turns = True

    def __init__(self, program: Any, name: str):
        super().__init__(program, name)
        missing = [package for package in ("starlette", "uvicorn") if find_spec(package) is None]
        if missing:
            raise ValueError(f"{self._name}: an endpoint needs {missing[0]} (pip install rllib-arpo[tools]).")
        #: The last request's messages and the answer to it, and its functions.
        self._talk: tuple[Mapping[str, Any], ...] = ()
        self._functions: tuple[Mapping[str, Any], ...] = ()
        self._number = 0

    async def reset(self, question: Question) -> Opening:
        server = SERVERS.get()
        self._endpoint = Endpoint(await server.open(self), server.app)
        return await self._begun(question, self._endpoint)

    async def act(self, action: Any) -> Reply:
        added = await self._answered(action)
        return Reply("", done=True) if added is None else Reply("", messages=added)

    async def close(self) -> None:
        if self._waits:
            assert self._said is not None
            self._said.set_exception(Refused("This trajectory has ended."))
        await super().close()
        await SERVERS.get().close(self)

    async def complete(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """The answer to a request.

        Raises:
            Refused: it does not continue the conversation, or asks for what the endpoint does not do.
        """
        request = read_request(body)
        known = len(self._talk)
        if self._waits or (known and (request.functions != self._functions or request.messages[:known] != self._talk)):
            self.refused += 1
            raise Refused("This request does not continue the conversation of this trajectory: it must repeat it.")
        added = request.messages[known:]
        if not added:
            self.refused += 1
            raise Refused("This request adds no message to the conversation.")
        self._talk, self._functions = request.messages, request.functions
        turn: Turn = await self._ask(added if known else Opening(added, request.functions))
        self._number += 1
        answer = completion(turn, self._number, str(body.get("model", "")))
        self._talk += (read_message(answer["choices"][0]["message"], {}),)
        return answer

    def _result(self) -> float:
        try:
            return super()._result()
        except (BrokenToolError, DataError):
            raise
        except Exception as error:
            if not self.refused:
                raise
            failed = f"{type(error).__name__}: {first_line(error)}"
            raise BrokenToolError(f"{self._name} failed after a refused request ({failed}).") from error
