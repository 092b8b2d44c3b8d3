"""A session with an MCP server that hangs, dies or ends, and its forks, with servers that are stand-ins."""

from __future__ import annotations

import asyncio
import contextlib
import time
from types import SimpleNamespace

import pytest

from rllib_arpo.envs.errors import ToolError
from rllib_arpo.envs.question import QA, Question
from rllib_arpo.envs.support.loop_thread import loop_thread
from rllib_arpo.envs.worlds import Call, WorldLost
from rllib_arpo.envs.worlds.maker import WorldMaker
from rllib_arpo.envs.worlds.mcp import McpWorld
from rllib_arpo.envs.worlds.mcp_session import McpServer, McpSession, result_text
from rllib_arpo.envs.worlds.session import WorldSession


class FakeClient:
    """Answers every call at once; or is "busy" for a while first, "hangs" until it is closed, "dies" of every call,
    raises "odd" errors, "counts" its calls. The session of one that "ends" does so soon."""

    def __init__(self, kind: str):
        self.calls: list[str] = []
        self.kind, self.closed, self.opened = kind, asyncio.Event(), asyncio.get_running_loop().time()

    async def call_tool(self, tool: str, arguments: dict) -> str:
        if self.kind == "odd":
            raise RuntimeError(tool)
        if self.kind == "ends" and self.closed.is_set():
            raise RuntimeError("Client must be used within an async context manager")
        self.calls.append(tool)
        await (asyncio.sleep(60.0) if tool == "waits" else self.list_tools())
        text = str(len(self.calls)) if self.kind == "counts" else f"{tool} {self.kind}"
        return SimpleNamespace(content=[SimpleNamespace(type="text", text=text)], is_error=False)

    async def list_tools(self, **options) -> None:
        busy_s = {"busy": 1.5, "hangs": None}.get(self.kind, 0.0)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout_at(None if busy_s is None else self.opened + busy_s):
                await self.closed.wait()
        if self.kind == "dies" or self.closed.is_set():
            raise ConnectionResetError("gone")


@pytest.fixture
def session_with(monkeypatch):
    """session_with(kinds...) -> a session whose servers are `FakeClient`s of these kinds, one after the other."""
    import mcp.types  # noqa: F401  # Slow, and not to be on the calls' time.

    thread, sessions = loop_thread("mcp"), []

    def make(*kinds: str, shared: bool = True) -> McpSession:
        left = list(kinds)

        @contextlib.asynccontextmanager
        async def client_of(server):
            client = FakeClient(left.pop(0))
            try:
                async with asyncio.timeout(0.1 if client.kind == "ends" else None):
                    yield client
            finally:
                client.closed.set()

        monkeypatch.setattr("rllib_arpo.envs.worlds.mcp_session.client_of", client_of)
        monkeypatch.setattr("rllib_arpo.envs.worlds.mcp_session.ALIVE_TIMEOUT_S", 0.1)
        sessions.append(McpSession(thread, McpServer(command="none", shared=shared), 60.0))
        return sessions[-1]

    yield make
    for session in sessions:
        thread.run_blocking(session.close(), 60.0)


async def said(session: McpSession, tool: str) -> str:
    return result_text(await session.call(tool, {}))


async def in_a_world(session: McpSession, tool: str) -> str:
    """The same by a trajectory that acts in a shared session."""
    maker = WorldMaker("The server", lambda: McpWorld(session, {}, 60.0))
    return (await WorldSession(maker, Question("q", (), (), QA, "q")).act(Call(tool, {}))).text


async def given_up(call, after_s: float) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(after_s):
            await call


async def test_a_server_that_let_a_call_time_out_is_replaced_only_if_it_keeps_silent(session_with):
    hung = session_with("hangs", "answers")
    await given_up(said(hung, "a"), 0.2)
    assert await said(hung, "b") == "b answers"
    slow = session_with("answers")
    await given_up(said(slow, "waits"), 0.2)
    assert await said(slow, "c") == "c answers"


def test_a_session_that_has_ended_by_itself_is_opened_again(session_with):
    session = session_with("ends", "answers")
    assert asyncio.run(said(session, "a")) == "a ends"
    time.sleep(0.5)
    assert asyncio.run(said(session, "b")) == "b answers"


def test_a_shared_server_that_dies_is_opened_again_once_a_call_and_nothing_is_repeated(session_with):
    session = session_with("dies", "answers", "dies", "dies", "answers")
    assert asyncio.run(in_a_world(session, "a")) == "a answers"
    asyncio.run(session._close())
    assert asyncio.run(in_a_world(session, "b")) == "The server was lost twice in one action (gone)."
    assert asyncio.run(in_a_world(session, "c")) == "c answers"


async def test_a_trajectorys_session_that_is_lost_is_not_opened_again(session_with):
    """Its server's state is gone: `WorldSession` repeats what was done, with another one."""
    session = session_with("counts", "dies", shared=False)
    assert await said(session, "count") == "1"
    await session._close()
    with pytest.raises(WorldLost, match="its server is gone"):
        await session.call("count", {})
    with pytest.raises(WorldLost, match="gone"):
        await session_with("dies", shared=False).call("a", {})


@pytest.mark.parametrize(
    ("message", "error"),
    [
        ("Tool a has an output schema but did not return structured content", ToolError),
        ("Invalid structured content returned by tool a: 3\nhere", ToolError),
        ("Event loop is closed", RuntimeError),
    ],
)
def test_a_result_that_does_not_fit_its_schema_is_an_error_and_a_bug_is_none(session_with, message, error):
    with pytest.raises(error, match=message.splitlines()[0]) as raised:
        asyncio.run(session_with("odd").call(message, {}))
    assert type(raised.value) is error
