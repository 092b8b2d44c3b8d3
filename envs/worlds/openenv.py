"""OpenEnv: environments behind a server. Each websocket is a session, in the protocol of openenv 0.2 to 0.10."""

from __future__ import annotations

import contextlib
import functools
import json
import logging
from collections.abc import Callable, Mapping
from typing import Any
from urllib.parse import urlsplit

from rllib_arpo.core.tree import ToolStatus
from rllib_arpo.envs.errors import BrokenToolError, ToolError, as_tool_error
from rllib_arpo.envs.question import Question
from rllib_arpo.envs.support.loop_thread import loop_thread
from rllib_arpo.envs.support.validation import function_named
from rllib_arpo.envs.tools.arguments import parse_model_json
from rllib_arpo.envs.worlds.world import Call, Reply, World, WorldLost

#: What the server shows, as JSON -> what the model reads.
Show = Callable[[Any], str]
#: The text of a turn -> the action as JSON. The model reads what it raises.
Read = Callable[[str], Any]
#: Bytes of a message, at most.
_MAX_BYTES = 1 << 26
#: Seconds that listing the tools, and closing, may take.
_LIST_TIMEOUT_S, _CLOSE_TIMEOUT_S = 30.0, 2.0
#: Errors of a step that the action may have caused; the session goes on.
_OF_ACTIONS = ("VALIDATION_ERROR", "EXECUTION_ERROR")
#: What `read` and `show` may be.
_FIELD = "a field, a function or its name"
_logger = logging.getLogger(__name__)


class _Refused(Exception):
    """The server answered with an error."""

    def __init__(self, data: Mapping[str, Any]):
        self.code = str(data.get("code"))
        errors = [f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in data.get("errors") or ()]
        super().__init__(". ".join([str(data.get("message")), *errors]))


class OpenEnvWorld(World):
    """One session. The environment's `reset` gets the columns of the question's row that it takes.

    If an action raises an error, the model reads it and the environment goes on.

    Args:
        url: the address of the server's websocket.
        tools: the server's tools; None: a turn's text is the action.
        read: reads a text as the action's fields.
        show: shows the fields of an observation.
    """

    forks_by = "replay"
    pays_by_replies = True

    def __init__(self, url: str, tools: Mapping[str, Mapping[str, Any]] | None, read: Read, show: Show):
        self.tools, self.takes_text = tools or {}, tools is None
        self._url, self._read, self._show = url, read, show
        self._socket: Any = None

    async def reset(self, question: Question) -> str:
        try:
            self._socket = await _connected(self._url)
            observed = await _asked(self._socket, "reset", dict(question.row))
        except (WorldLost, _Refused) as error:
            if isinstance(error, _Refused) and error.code == "CAPACITY_REACHED":
                _warn_of_capacity(self._url, str(error))
            raise BrokenToolError(f"{self._url}: {error}") from error
        return self._show(_fields(observed))

    async def act(self, action: Call | str) -> Reply:
        if isinstance(action, Call):
            data = {"type": "call_tool", "tool_name": action.tool, "arguments": dict(action.arguments)}
        else:
            data = self._read(action)
        try:
            observed = await _asked(self._socket, "step", data)
        except _Refused as error:
            if error.code in _OF_ACTIONS:
                raise ToolError(str(error)) from error
            raise WorldLost(f"{self._url}: {error}") from error
        text, status = self._show(_fields(observed)), ToolStatus.OK
        if isinstance(action, Call):
            text, status = _of_tool(observed["observation"])
        return Reply(text, float(observed.get("reward") or 0.0), bool(observed.get("done")), status)

    async def close(self) -> None:
        if self._socket is not None:
            from websockets.exceptions import ConnectionClosed

            with contextlib.suppress(ConnectionClosed):
                await self._socket.send(json.dumps({"type": "close"}))
            await self._socket.close()


def openenv_world(
    url: str, *, tools: bool = False, read: Read | str | None = None, show: Show | str | None = None
) -> Callable[[], World]:
    """The maker of worlds of a server.

    Args:
        url: "http://host:port", or with "https", "ws" or "wss".
        tools: whether the model calls the tools that the server lists. If so, this asks the server, and blocks.
        read: makes an action of a text. A field's name: that field gets the text; a function, itself or as
            "module:function"; None: the text is a JSON object.
        show: makes a text of an observation. A field's name: that field is the text; a function, likewise; None: the
            only field if it has a text, otherwise JSON.

    Raises:
        ValueError: the URL has another form, the server does not list its tools, or there is no such function.
    """
    parts = urlsplit(url)
    scheme = {"http": "ws", "https": "wss", "ws": "ws", "wss": "wss"}.get(parts.scheme)
    if scheme is None or not parts.hostname:
        raise ValueError(f"env_config['world']: openenv: 'url' must be like \"http://host:port\", not {url!r}.")
    address = parts._replace(scheme=scheme, path=parts.path.rstrip("/").removesuffix("/ws") + "/ws").geturl()
    return functools.partial(OpenEnvWorld, address, _listed(address) if tools else None, _reader(read), _shower(show))


@functools.lru_cache(maxsize=16)
def _listed(url: str) -> dict[str, Mapping[str, Any]]:
    """The server's tools: name -> schema with a description."""

    async def ask() -> list[Mapping[str, Any]]:
        socket = await _connected(url)
        try:
            return (await _asked(socket, "step", {"type": "list_tools"}))["observation"]["tools"]
        finally:
            await socket.close()

    try:
        tools = loop_thread("openenv").run_blocking(ask(), _LIST_TIMEOUT_S)
    except (BrokenToolError, _Refused, TimeoutError) as error:
        raise ValueError(f"env_config['world']: {url} does not list its tools ({error}).") from error
    return {tool["name"]: {**tool["input_schema"], "description": tool["description"]} for tool in tools}


async def _connected(url: str) -> Any:
    """A session.

    Raises:
        BrokenToolError: the server cannot be reached.
    """
    from websockets.asyncio.client import connect
    from websockets.exceptions import InvalidHandshake

    try:
        # No limit for the handshake, nor for the answer to a ping: `timeout_s` limits what a session does, and a server
        # may be busy with another's action.
        return await connect(
            url, max_size=_MAX_BYTES, open_timeout=None, ping_timeout=None, close_timeout=_CLOSE_TIMEOUT_S
        )
    except (OSError, InvalidHandshake) as error:
        raise BrokenToolError(f"{url} cannot be reached ({error}).") from error


async def _asked(socket: Any, kind: str, data: Any) -> Any:
    """The server's answer to a message.

    Raises:
        WorldLost: the connection is gone.
        _Refused: the answer is an error.
    """
    from websockets.exceptions import ConnectionClosed

    try:
        # A server without a free session says so and closes, maybe before this message: that frame can still be read.
        with contextlib.suppress(ConnectionClosed):
            await socket.send(json.dumps({"type": kind, "data": data}))
        answer = json.loads(await socket.recv())
    except ConnectionClosed as error:
        raise WorldLost(f"the connection was lost ({error})") from error
    if answer["type"] == "error":
        raise _Refused(answer["data"])
    return answer["data"]


def _fields(observed: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in observed["observation"].items() if name != "metadata"}


def _of_tool(observation: Mapping[str, Any]) -> tuple[str, ToolStatus]:
    """The text of a tool's result, and its status."""
    if observation.get("error"):
        return str(observation["error"]["message"]), ToolStatus.ERROR
    result = observation.get("result")
    if not (isinstance(result, Mapping) and "content" in result):
        return _as_text(result), ToolStatus.OK
    text = "\n".join(block["text"] for block in result["content"] if block.get("type") == "text")
    return text, ToolStatus.ERROR if result.get("is_error") else ToolStatus.OK


@functools.lru_cache(maxsize=16)
def _warn_of_capacity(url: str, message: str) -> None:
    _logger.warning("%s: %s Each trajectory and each fork has a session: raise its max_concurrent_envs.", url, message)


def _reader(given: Read | str | None) -> Read:
    if isinstance(given, str) and ":" not in given:
        return lambda text: {given: text}
    found = function_named(given, "read", _FIELD) or _object

    def read(text: str) -> Any:
        with as_tool_error():
            return found(text)

    return read


def _shower(given: Show | str | None) -> Show:
    if isinstance(given, str) and ":" not in given:
        return lambda observed: _as_text(observed.get(given))
    return function_named(given, "show", _FIELD) or _as_text


def _as_text(observed: Any) -> str:
    """A JSON value as text: its only field's text if it has just that, and "" if it is empty."""
    if isinstance(observed, Mapping) and len(observed) == 1:
        (only,) = observed.values()
        observed = only if isinstance(only, str) else observed
    if isinstance(observed, str):
        return observed
    return json.dumps(observed, ensure_ascii=False) if observed not in (None, {}, []) else ""


def _object(text: str) -> Any:
    try:
        found = parse_model_json(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        raise ToolError("An action is one JSON object.")
    return found
