"""NeMo Gym: a resources server, over HTTP with cookies. Its rows are questions of the task "nemo_gym"."""

from __future__ import annotations

import functools
import json
from collections.abc import Callable, Mapping
from typing import Any

from rllib_arpo.core.tree import ToolStatus
from rllib_arpo.envs.errors import BrokenToolError
from rllib_arpo.envs.question import Question
from rllib_arpo.envs.rewards import FinishedPath, Score
from rllib_arpo.envs.support.texts import first_line
from rllib_arpo.envs.tasks.rows import all_rows, open_file
from rllib_arpo.envs.tasks.specs import NEMO_GYM_PARAMS
from rllib_arpo.envs.worlds.world import Call, Reply, World, WorldLost

#: Answers that are not the server's own, but its proxy's.
_NOT_OF_THE_SERVER = (429, 502, 503, 504)


class _NemoGym(World):
    """A session of a server, which a cookie names.

    Args:
        url: of the server.
    """

    forks_by = "replay"

    def __init__(self, url: str):
        self._url = url
        self._client: Any = None
        self._row: Mapping[str, Any] = {}
        #: What was called, as items of OpenAI's Responses API.
        self._output: list[dict[str, Any]] = []

    async def _begin(self, question: Question, path: str) -> Any:
        import httpx

        self._row = question.row
        # A client is a session's, since it keeps the cookies. `timeout_s` limits what it does.
        self._client = httpx.AsyncClient(base_url=self._url, timeout=None, verify=_certificates())
        try:
            return await self._own(path, self._row)
        except WorldLost as error:
            raise BrokenToolError(str(error)) from error

    async def _post(self, path: str, body: Any) -> Any:
        """The server's response (of httpx).

        Raises:
            WorldLost: it cannot be reached any more.
        """
        import httpx

        try:
            response = await self._client.post(path, json=body)
        except httpx.HTTPError as error:
            raise WorldLost(f"{self._url}{path}: {first_line(error)}") from error
        if response.status_code in _NOT_OF_THE_SERVER:
            raise BrokenToolError(f"{self._url}{path}: {response.status_code}")
        return response

    async def _own(self, path: str, body: Any) -> Any:
        """What one of the protocol's own paths answers.

        Raises:
            BrokenToolError: an error; `WorldLost`: as `_post`.
        """
        response = await self._post(path, body)
        if not response.is_success:
            raise BrokenToolError(f"{self._url}{path}: {response.status_code} {response.text:.200}")
        return response.json()

    def _answered(self, text: str) -> dict[str, Any]:
        """The row with the model's whole response, which ends with `text`."""
        content = [{"type": "output_text", "text": text, "annotations": []}]
        said = {"type": "message", "id": "message", "role": "assistant", "status": "completed", "content": content}
        response = {
            "id": "response",
            "object": "response",
            "created_at": 0.0,
            "model": "policy",
            "output": [*self._output, said],
            "parallel_tool_calls": False,
            "tool_choice": "auto",
            "tools": self._row[NEMO_GYM_PARAMS].get("tools") or [],
        }
        return {**self._row, "response": response}

    async def close(self) -> None:
        if self._client is not None:
            await self._client.aclose()


class NemoGymTools(_NemoGym):
    """Calls are requests to the paths of the server that bear their names; `/verify` scores the whole response."""

    def __init__(self, url: str, tools: Mapping[str, Mapping[str, Any]]):
        super().__init__(url)
        self.tools = tools

    async def reset(self, question: Question) -> str:
        await self._begin(question, "/seed_session")
        return ""

    async def act(self, action: Call | str) -> Reply:
        assert isinstance(action, Call)
        response = await self._post(f"/{action.tool}", dict(action.arguments))
        call = {"call_id": f"call_{len(self._output)}"}
        arguments = json.dumps(dict(action.arguments), ensure_ascii=False)
        self._output += [
            {**call, "type": "function_call", "name": action.tool, "arguments": arguments, "status": "completed"},
            {**call, "type": "function_call_output", "output": response.text},
        ]
        return Reply(response.text, status=ToolStatus.OK if response.is_success else ToolStatus.ERROR)

    async def score(self, path: FinishedPath) -> Score | None:
        verified = await self._own("/verify", self._answered(path.turns[-1] if path.turns else ""))
        reward = float(verified["reward"])
        return Score.of(reward)


class NemoGymTurns(_NemoGym):
    """A server in Gymnasium's manner: `/reset`, and `/step` with each turn's text."""

    takes_text = pays_by_replies = True

    def __init__(self, url: str):
        super().__init__(url)
        self._closes = False

    async def reset(self, question: Question) -> str:
        begun = await self._begin(question, "/reset")
        self._closes = (begun.get("info") or {}).get("supports_explicit_close") is True
        return begun.get("observation") or ""

    async def act(self, action: Call | str) -> Reply:
        step = await self._own("/step", self._answered(str(action)))
        done = bool(step.get("terminated") or step.get("truncated"))
        return Reply(step.get("observation") or "", float(step["reward"]), done)

    async def close(self) -> None:
        try:
            if self._closes:
                await self._post("/close", {})
        finally:
            await super().close()


def nemo_gym_world(url: str, *, tools: str | None = None, turns: bool = False) -> Callable[[], World]:
    """The maker of worlds of a resources server.

    Args:
        url: "http://host:port".
        tools: a file of rows, whose tools the model may call.
        turns: whether the server takes turns (`GymnasiumServer`) in place of calls.

    Raises:
        ValueError: it is not such a URL.
        DataError: the file cannot be read.
    """
    if not url.startswith(("http://", "https://")):
        raise ValueError(f"env_config['world']: nemo_gym: 'url' must be like \"http://host:port\", not {url!r}.")
    if turns:
        return functools.partial(NemoGymTurns, url.rstrip("/"))
    return functools.partial(NemoGymTools, url.rstrip("/"), tools_of_rows(tools) if tools else {})


def tools_of_rows(path: str) -> dict[str, Mapping[str, Any]]:
    """The tools of all rows of a file: name -> schema with a description.

    Raises:
        DataError: the file cannot be read.
    """
    tools: dict[str, Mapping[str, Any]] = {}
    for _, row in all_rows(open_file(path), (NEMO_GYM_PARAMS,)):
        for tool in (row.get(NEMO_GYM_PARAMS) or {}).get("tools") or ():
            if tool.get("type") == "function":
                schema = {**(tool.get("parameters") or {"type": "object", "properties": {}})}
                tools.setdefault(tool["name"], {**schema, "description": tool.get("description") or ""})
    return tools


@functools.cache
def _certificates() -> Any:
    """Read once, which takes 20 ms."""
    import ssl

    return ssl.create_default_context()
