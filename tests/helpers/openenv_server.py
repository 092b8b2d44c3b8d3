"""A server that speaks as OpenEnv's do, in a thread: each session adds up numbers, from the seed on."""

from __future__ import annotations

import asyncio
import json
from typing import Any

from websockets.asyncio.server import ServerConnection, serve
from websockets.exceptions import ConnectionClosed
from websockets.http11 import Request

from rllib_arpo.envs.support.loop_thread import LoopThread

ADD = {
    "name": "add",
    "description": "Adds a number.",
    "input_schema": {"type": "object", "properties": {"number": {"type": "integer"}}, "required": ["number"]},
}


class OpenEnvServer:
    """Args:
        max_sessions: at a time.
        open_s: seconds that it takes to open a connection.

    Attributes:
        url: where it listens, after `with`.
        sessions: opened so far.
        open: the connections with a session.
    """

    def __init__(self, max_sessions: int = 100, open_s: float = 0.0):
        self.url, self.sessions, self.open = "", 0, set[ServerConnection]()
        self._max_sessions, self._open_s = max_sessions, open_s
        self._thread, self._server = LoopThread("openenv stand-in"), None

    def __enter__(self) -> OpenEnvServer:
        self._thread.run_blocking(self._start(), 10.0)
        return self

    def __exit__(self, *exc_info) -> None:
        self._thread.run_blocking(self._kill(), 10.0)

    def cut(self) -> None:
        """Ends all connections without a word."""
        self._thread.run_blocking(self._cut(), 10.0)

    async def _start(self) -> None:
        self._server = await serve(self._session, "127.0.0.1", 0, process_request=self._opened)
        self.url = f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def _cut(self) -> None:
        for connection in list(self.open):
            connection.transport.abort()

    async def _kill(self) -> None:
        self._server.close(close_connections=False)
        await self._cut()

    async def _opened(self, connection: ServerConnection, request: Request) -> None:
        await asyncio.sleep(self._open_s)

    async def _session(self, connection: ServerConnection) -> None:
        if len(self.open) >= self._max_sessions:
            full = {"message": f"Server at capacity: {self._max_sessions}.", "code": "CAPACITY_REACHED"}
            await connection.send(json.dumps({"type": "error", "data": full}))
            return
        self.open.add(connection)
        self.sessions += 1
        state = {"total": 0}
        try:
            async for message in connection:
                asked = json.loads(message)
                if asked["type"] == "close":
                    return
                answer = await _answer(state, asked["type"], asked["data"])
                await connection.send(json.dumps(answer))
                if answer["data"].get("code") == "SESSION_ERROR":
                    return
        except ConnectionClosed:
            return
        finally:
            self.open.discard(connection)


async def _answer(state: dict[str, int], kind: str, data: dict[str, Any]) -> dict[str, Any]:
    if kind == "reset":
        state["total"] = data.get("seed", 0)
        return _observed({"message": f"begin at {state['total']}"})
    if data.get("type") == "list_tools":
        return _observed({"tools": [ADD]})
    if data.get("type") == "call_tool":
        state["total"] += data["arguments"]["number"] if data["tool_name"] == ADD["name"] else 0
        content = [{"type": "text", "text": str(state["total"])}]
        return _observed({"tool_name": "add", "result": {"content": content, "is_error": False}, "error": None})
    said = data.get("message")
    if said == "sleep":
        await asyncio.sleep(60)
    if said == "crash":
        return _error("SESSION_ERROR", "it crashed")
    if said is None:
        return _error("VALIDATION_ERROR", "Invalid message", errors=[{"loc": ["message"], "msg": "Field required"}])
    if not said.lstrip("-").isdecimal():
        return _error("EXECUTION_ERROR", "that is no number")
    state["total"] += int(said)
    return _observed({"message": str(state["total"])}, reward=0.25, done=state["total"] > 100)


def _observed(observation: dict[str, Any], reward: float | None = None, done: bool = False) -> dict[str, Any]:
    shown = {"observation": {"metadata": {}, **observation}, "reward": reward, "done": done}
    return {"type": "observation", "data": shown}


def _error(code: str, message: str, **more: Any) -> dict[str, Any]:
    return {"type": "error", "data": {"message": message, "code": code, **more}}
