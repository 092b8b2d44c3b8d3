"""Tools of a real MCP server, alone and in an environment; and, with stand-ins, sessions that hang, die or end."""

from __future__ import annotations

import asyncio
import contextlib
import re
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace

import pytest

from rllib_arpo.core.tree import ToolStatus
from rllib_arpo.envs.errors import BrokenToolError, ForkRefused, ToolError
from rllib_arpo.envs.forkable_env import OPTION_NUM_ROOTS, OPTION_QUESTION
from rllib_arpo.envs.question import QA, Question
from rllib_arpo.envs.support.loop_thread import loop_thread
from rllib_arpo.envs.tool_env import ToolEnv
from rllib_arpo.envs.tools.tool import Tool, ToolResult
from rllib_arpo.envs.worlds import Call, WorldLost
from rllib_arpo.envs.worlds.maker import WorldMaker
from rllib_arpo.envs.worlds.mcp import McpServer, McpSession, McpTools, McpWorld, result_text
from rllib_arpo.envs.worlds.session import WorldSession
from tests.helpers.other_python import free_port, running

SERVER = str(Path(__file__).resolve().parents[2] / "helpers" / "mcp_server.py")
STDIO = {"command": sys.executable, "args": [SERVER]}
SHARED = {**STDIO, "shared": True}
OK, ERROR, TIMEOUT = ToolStatus.OK, ToolStatus.ERROR, ToolStatus.TIMEOUT


def expand(servers: dict, **options) -> dict[str, Tool]:
    return McpTools(servers=servers, **options).expand()


def call(tool: Tool, argument: str) -> ToolResult:
    """The answer to the only call of a trajectory."""

    async def called() -> ToolResult:
        session = WorldSession(WorldMaker("The server", tool.make_world), Question("q", (), (), QA, "q"))
        reply = await session.call(tool, argument)
        await session.close()
        return ToolResult(reply.text, reply.status)

    return asyncio.run(called())


@pytest.fixture(scope="module")
def stdio() -> dict[str, Tool]:
    return expand({"shop": SHARED})


def test_a_servers_tools_are_tools(stdio):
    assert list(stdio) == ["price", "multiply", "fail", "count", "sleep", "die", "pid"]
    multiply = stdio["multiply"]
    assert multiply.description == "The product of two numbers."
    assert {name: schema["type"] for name, schema in multiply.parameters.items()} == {
        "a": "integer",
        "b": "integer",
        "unit": "string",
    }
    assert multiply.schema()["required"] == ["a", "b"]


@pytest.mark.parametrize(
    ("name", "argument", "expected"),
    [
        ("price", "brass lamp", ToolResult("12")),
        ("price", '{"name": "oak chair"}', ToolResult("""no item '{"name": "oak chair"}'""")),
        ("multiply", '{"a": 7, "b": 12, "unit": " crowns"}', ToolResult("84 crowns")),
        ("fail", "no such order", ToolResult("Error executing tool fail: no such order", ERROR)),
    ],
)
def test_calls(stdio, name, argument, expected):
    assert call(stdio[name], argument) == expected


def test_calls_from_many_loops_share_one_server(stdio):
    pid = stdio["pid"]
    with ThreadPoolExecutor(4) as threads:
        assert len(set(threads.map(lambda _: call(pid, pid.text_argument({})).text, range(12)))) == 1


def test_a_call_that_takes_too_long_is_given_up_and_the_server_goes_on(stdio):
    (slow,) = [tool for name, tool in expand({"shop": SHARED}, timeout_s=0.5).items() if name == "sleep"]
    before = call(stdio["pid"], "{}")
    assert call(slow, '{"seconds": 3}') == ToolResult("Time limit of 0.5 s exceeded.", TIMEOUT)
    assert call(stdio["pid"], "{}") == before


@pytest.mark.slow
def test_an_http_server_that_is_gone_is_a_broken_tool_until_it_is_back():
    port = free_port()
    command = (sys.executable, SERVER, str(port))
    with running(*command, port=port):
        tools = expand({"shop": {"url": f"http://127.0.0.1:{port}/mcp", "shared": True}})
        assert call(tools["price"], "brass lamp") == ToolResult("12")
        assert call(tools["multiply"], '{"a": 7, "b": "x"}').status == ERROR
        assert call(tools["fail"], "no such order") == ToolResult("Error executing tool fail: no such order", ERROR)
    with pytest.raises(BrokenToolError, match="cannot be used"):
        call(tools["price"], "brass lamp")
    with running(*command, port=port):
        assert call(tools["price"], "brass lamp") == ToolResult("12")


async def said(env: ToolEnv, agent: str, turn: str) -> str:
    """The environment's answer to a turn, without tags."""
    tokens = env.tokenizer.encode(turn, add_special_tokens=False)
    observation, *_ = await env.step_agent(agent, tokens)
    return env.tokenizer.decode(observation).strip().removeprefix("<result> ").removesuffix(" </result>")


COUNT, PID = "<count> {} </count>", "<pid> {} </pid>"


@pytest.mark.slow
async def test_each_trajectory_and_each_fork_has_a_server_of_its_own(make_tool_env):
    """Two roots, a fork, a fork that cannot repeat what its parent read, and the next question."""
    env = make_tool_env(tools={"mcp": {"servers": {"shop": STDIO}}})
    env.reset(options={OPTION_QUESTION: 0, OPTION_NUM_ROOTS: 2})
    found = [await said(env, "0", COUNT), await said(env, "0", COUNT), await said(env, "1", COUNT)]
    env.fork_agent("0", "0.0")
    found += [await said(env, "0", COUNT), await said(env, "0.0", COUNT)]
    pid = int(await said(env, "1", PID))
    env.fork_agent("1", "1.0")
    with pytest.raises(ForkRefused, match=rf"cannot be repeated: turn 2, pid {{}}, got '\d+ ?' in .* '{pid} ?'"):
        await said(env, "1.0", COUNT)
    found += [await said(env, "1", COUNT)]
    await env.close_question()
    assert not Path(f"/proc/{pid}").exists()
    env.reset(options={OPTION_QUESTION: 1})
    found += [await said(env, "0", COUNT)]
    await env.close_question()
    assert found == ["1", "2", "1", "3", "3", "2", "1"]


@pytest.mark.slow
@pytest.mark.parametrize("breaks", ["<die> {} </die>", '<sleep> {"seconds": 60} </sleep>'])
async def test_a_call_that_breaks_costs_neither_its_neighbours_nor_its_own_trajectory(make_tool_env, breaks):
    env = make_tool_env(tools={"mcp": {"servers": {"shop": STDIO}, "timeout_s": 10.0}})
    env.reset(options={OPTION_QUESTION: 0, OPTION_NUM_ROOTS: 3})
    found = [await said(env, agent, COUNT) for agent in "012"]
    _broken, *answers = await asyncio.gather(said(env, "0", breaks), said(env, "1", COUNT), said(env, "2", COUNT))
    found += [*answers, *[await said(env, agent, COUNT) for agent in "012"]]
    await env.close_question()
    assert found == ["1", "1", "1", "2", "2", "2", "3", "3"]


def test_names_that_clash_get_the_servers_name():
    servers = {"one": {**STDIO, "tools": ["price", "pid"]}, "two": {**STDIO, "tools": ["price"]}}
    assert list(expand(servers)) == ["one_price", "pid", "two_price"]


def test_keys_are_passed_on_by_name(monkeypatch):
    monkeypatch.setenv("SHOP_KEY", "hunter2")
    tools = expand({"shop": {**STDIO, "pass_env": ["SHOP_KEY"]}})
    assert re.fullmatch(r"\d+ hunter2", call(tools["pid"], "{}").text)


class FakeClient:
    """Answers every call at once; or is "busy" for a while first, "hangs" until it is closed, "dies" of every call,
    raises "odd" errors. The session of one that "ends" does so soon."""

    def __init__(self, kind: str):
        self.kind, self.closed, self.opened = kind, asyncio.Event(), asyncio.get_running_loop().time()

    async def call_tool(self, tool: str, arguments: dict) -> str:
        if self.kind == "odd":
            raise RuntimeError(tool)
        if self.kind == "ends" and self.closed.is_set():
            raise RuntimeError("Client must be used within an async context manager")
        await (asyncio.sleep(60.0) if tool == "waits" else self.list_tools())
        content = [SimpleNamespace(type="text", text=f"{tool} {self.kind}")]
        return SimpleNamespace(content=content, is_error=False)

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

        monkeypatch.setattr("rllib_arpo.envs.worlds.mcp.client_of", client_of)
        monkeypatch.setattr("rllib_arpo.envs.worlds.mcp.ALIVE_TIMEOUT_S", 0.1)
        sessions.append(McpSession(thread, McpServer(command="none", shared=shared), 60.0))
        return sessions[-1]

    yield make
    for session in sessions:
        thread.run_blocking(session.close(), 60.0)


async def asked(session: McpSession, tool: str) -> str:
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
    await given_up(asked(hung, "a"), 0.2)
    assert await asked(hung, "b") == "b answers"
    slow = session_with("answers")
    await given_up(asked(slow, "waits"), 0.2)
    assert await asked(slow, "c") == "c answers"


def test_a_session_that_has_ended_by_itself_is_opened_again(session_with):
    session = session_with("ends", "answers")
    assert asyncio.run(asked(session, "a")) == "a ends"
    time.sleep(0.5)
    assert asyncio.run(asked(session, "b")) == "b answers"


def test_a_shared_server_that_dies_is_opened_again_once_a_call_and_nothing_is_repeated(session_with):
    session = session_with("dies", "answers", "dies", "dies", "answers")
    assert asyncio.run(in_a_world(session, "a")) == "a answers"
    asyncio.run(session._close())
    assert asyncio.run(in_a_world(session, "b")) == "The server was lost twice in one action (gone)."
    assert asyncio.run(in_a_world(session, "c")) == "c answers"


async def test_a_trajectorys_session_that_is_lost_is_not_opened_again(session_with):
    """Its server's state is gone: `WorldSession` repeats what was done, with another one."""
    session = session_with("answers", "answers", shared=False)
    assert await asked(session, "a") == "a answers"
    await session._close()
    with pytest.raises(WorldLost, match="its server is gone"):
        await session.call("b", {})


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
