"""Tools of a real MCP server, over standard input and output and over HTTP, by themselves and in a rollout."""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from rllib_arpo.core.tree import StopReason, ToolStatus
from rllib_arpo.engine.engine import EngineConfig
from rllib_arpo.engine.scripted_engine import ScriptedEngine, ScriptedReply
from rllib_arpo.envs.errors import BrokenToolError, ToolError
from rllib_arpo.envs.support.loop_thread import loop_thread
from rllib_arpo.envs.tool_env import ToolEnv
from rllib_arpo.envs.tools.mcp import McpTools
from rllib_arpo.envs.tools.mcp_session import McpServer, McpSession
from rllib_arpo.envs.tools.tool import Tool, ToolResult, run_tool
from rllib_arpo.rollout.engine_loop import EngineLoop
from rllib_arpo.rollout.messages import QuestionRef
from rllib_arpo.rollout.tree_sampler import TreeSampler
from tests.helpers.models import byte_tokenizer
from tests.helpers.scripts import in_turn
from tests.rollout.conftest import settings

SERVER = str(Path(__file__).resolve().parents[1] / "helpers" / "mcp_server.py")
STDIO = {"command": sys.executable, "args": [SERVER]}
#: A server of its own, for tests that kill it.
MORTAL = {**STDIO, "env": {"SHOP_KEY": "mortal"}}
OK, ERROR, TIMEOUT = ToolStatus.OK, ToolStatus.ERROR, ToolStatus.TIMEOUT


def expand(servers: dict, **options) -> dict[str, Tool]:
    return McpTools(servers=servers, **options).expand()


def call(tool: Tool, argument: str) -> ToolResult:
    return asyncio.run(run_tool(tool, argument, None))


@pytest.fixture(scope="module")
def stdio() -> dict[str, Tool]:
    return expand({"shop": STDIO})


class running:
    """The server at a port, until the block ends."""

    def __init__(self, port: int):
        self._port = port

    def __enter__(self) -> running:
        self._process = subprocess.Popen([sys.executable, SERVER, str(self._port)], stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self._port)) == 0:
                    return self
            time.sleep(0.05)
        raise TimeoutError("The MCP server did not start.")

    def __exit__(self, *exc_info) -> None:
        self._process.kill()
        self._process.wait()


def test_a_servers_tools_are_tools(stdio):
    assert list(stdio) == ["price", "multiply", "fail", "sleep", "die", "pid"]
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
        ("price", '{"item": "oak chair"}', ToolResult("30")),
        ("price", '{"name": "oak chair"}', ToolResult("""no item '{"name": "oak chair"}'""")),
        ("multiply", '{"a": 7, "b": 12, "unit": " crowns"}', ToolResult("84 crowns")),
        ("multiply", "7 12", ToolResult("multiply takes one JSON object with 'a', 'b', 'unit'.", ERROR)),
        ("multiply", "[" * 100_000, ToolResult("multiply takes one JSON object with 'a', 'b', 'unit'.", ERROR)),
        ("multiply", '{"a": 7}', ToolResult("multiply: wrong arguments: 'b' is a required property.", ERROR)),
        (
            "multiply",
            '{"a": 7, "b": 2, "c": 3}',
            ToolResult("multiply has no parameter 'c': it takes 'a', 'b', 'unit'.", ERROR),
        ),
        (
            "multiply",
            '{"a": 7, "b": "x"}',
            ToolResult("multiply: wrong arguments: 'b' 'x' is not of type 'integer'.", ERROR),
        ),
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
    (slow,) = [tool for name, tool in expand({"shop": STDIO}, timeout_s=0.5).items() if name == "sleep"]
    before = call(stdio["pid"], "{}")
    assert call(slow, '{"seconds": 3}') == ToolResult("Time limit of 0.5 s exceeded.", TIMEOUT)
    assert call(stdio["pid"], "{}") == before


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
        await self.list_tools()
        return f"{tool} {self.kind}"

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

    def make(*kinds: str) -> McpSession:
        left = list(kinds)

        @contextlib.asynccontextmanager
        async def client_of(server):
            client = FakeClient(left.pop(0))
            try:
                async with asyncio.timeout(0.1 if client.kind == "ends" else None):
                    yield client
            finally:
                client.closed.set()

        monkeypatch.setattr("rllib_arpo.envs.tools.mcp_session._client_of", client_of)
        monkeypatch.setattr("rllib_arpo.envs.tools.mcp_session.ALIVE_TIMEOUT_S", 0.1)
        sessions.append(McpSession(thread, McpServer(command="none"), 60.0))
        return sessions[-1]

    yield make
    for session in sessions:
        thread.run_blocking(session.close(), 60.0)


async def in_flight(session: McpSession, number: int) -> None:
    async with asyncio.timeout(60.0):
        while len(session._in_flight) < number:
            await asyncio.sleep(0.01)


async def given_up(call, after_s: float) -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(after_s):
            await call


def test_a_slow_call_does_not_disturb_those_beside_it(session_with):
    """The server is busy for a while with a call that was given up after 0.2 s, and answers nothing meanwhile."""
    session = session_with("busy", "answers")

    async def together():
        beside = asyncio.create_task(session.call("b", {}))
        await in_flight(session, 1)
        await given_up(session.call("a", {}), 0.2)
        return await asyncio.gather(beside, session.call("c", {}))

    assert asyncio.run(together()) == ["b busy", "c busy"]
    assert asyncio.run(session.call("d", {})) == "d busy"


def test_a_hung_server_is_replaced_when_those_in_flight_have_waited_in_vain(session_with):
    """The call that came later is sent again, and its server's end is not put down to it."""
    session = session_with("hangs", "dies", "answers")

    async def together():
        witness = asyncio.create_task(given_up(session.call("b", {}), 1.0))
        await in_flight(session, 1)
        await given_up(session.call("a", {}), 0.2)
        later = asyncio.create_task(session.call("c", {}))
        await in_flight(session, 2)
        await witness
        assert await session.call("d", {}) == "d answers"
        return await later

    assert asyncio.run(together()) == "c answers"


def test_a_session_that_has_ended_by_itself_is_opened_again(session_with):
    session = session_with("ends", "answers")
    assert asyncio.run(session.call("a", {})) == "a ends"
    time.sleep(0.5)
    assert asyncio.run(session.call("b", {})) == "b answers"


def test_a_server_that_dies_twice_of_a_call_is_broken(session_with):
    with pytest.raises(BrokenToolError, match=r"died twice during one call of 'a' \(gone\)"):
        asyncio.run(session_with("dies", "dies", "answers").call("a", {}))


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


@pytest.mark.slow
def test_a_server_that_dies_is_started_again_once_a_call(tmp_path):
    tools = expand({"shop": MORTAL}, timeout_s=60.0)
    before = call(tools["pid"], "{}").text
    os.kill(int(before.split()[0]), signal.SIGKILL)
    after = call(tools["pid"], "{}").text
    assert after != before
    assert call(tools["die"], str(tmp_path / "marker")) == ToolResult("alive again")
    with pytest.raises(BrokenToolError, match="died twice during one call of 'die'"):
        call(tools["die"], "always")
    assert call(tools["price"], "brass lamp") == ToolResult("12")


@pytest.mark.slow
def test_an_http_server_that_is_gone_is_a_broken_tool_until_it_is_back():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with running(port):
        tools = expand({"shop": {"url": f"http://127.0.0.1:{port}/mcp"}})
        assert call(tools["price"], "brass lamp") == ToolResult("12")
        assert call(tools["multiply"], '{"a": 7, "b": "x"}').status == ERROR
        assert call(tools["fail"], "no such order") == ToolResult("Error executing tool fail: no such order", ERROR)
    with pytest.raises(BrokenToolError, match="cannot be used"):
        call(tools["price"], "brass lamp")
    with running(port):
        assert call(tools["price"], "brass lamp") == ToolResult("12")


def test_names_that_clash_get_the_servers_name():
    servers = {"one": {**STDIO, "tools": ["price", "pid"]}, "two": {**STDIO, "tools": ["price"]}}
    assert list(expand(servers)) == ["one_price", "pid", "two_price"]


def test_keys_are_passed_on_by_name(monkeypatch):
    monkeypatch.setenv("SHOP_KEY", "hunter2")
    tools = expand({"shop": {**STDIO, "pass_env": ["SHOP_KEY"]}})
    assert re.fullmatch(r"\d+ hunter2", call(tools["pid"], "{}").text)


@pytest.mark.parametrize(
    ("server", "message"),
    [
        ({}, "an MCP server needs either a command or a url"),
        ({"url": "ftp://b"}, "the url must begin with http:// or https://, which 'ftp://b' does not"),
        ({"command": "a", "pass_env": ["NO_SUCH_KEY"]}, "the environment variable NO_SUCH_KEY is not set"),
        ({"comand": "a"}, "Unknown key of the MCP server 's' 'comand': did you mean 'command'?"),
        ({"command": "/no/such/program"}, "The MCP server cannot be used ([Errno 2]"),
        ({"command": sys.executable, "args": ["-c", ""]}, "The MCP server cannot be used (Connection closed)."),
        ({"command": sys.executable, "args": ["-c", "import time; time.sleep(60)"]}, "did not answer in 1 s"),
        ({**STDIO, "tools": ["prize"]}, "Unknown tool of the MCP server 's' 'prize': did you mean 'price'?"),
    ],
)
def test_wrong_servers_are_named(server, message):
    start_timeout_s = 1.0 if "sleep" in str(server) else 30.0
    with pytest.raises(ValueError) as error:
        expand({"s": server}, start_timeout_s=start_timeout_s)
    assert message in str(error.value)


def test_a_name_that_no_tag_can_carry_is_refused():
    with pytest.raises(ValueError, match="The mcp tools need `servers`"):
        McpTools()
    code = (
        "from mcp.server.mcpserver import MCPServer\n"
        "server = MCPServer('odd')\n"
        "server.add_tool(lambda: 'x', name='an odd/name')\n"
        "server.run('stdio')"
    )
    with pytest.raises(ValueError, match=r"'odd': 'an odd/name' cannot be the name of a tool"):
        expand({"odd": {"command": sys.executable, "args": ["-c", code]}})


def test_a_model_calls_an_mcp_tool_in_a_rollout(tmp_path):
    """The scripted model calls two tools of the server, one in each of two turns, and answers with the product."""
    tokenizer = byte_tokenizer()
    tokenizer.save_pretrained(tmp_path)
    tools = {"mcp": {"servers": {"shop": STDIO}}}
    env_config = {"model_name_or_path": str(tmp_path), "task": "arithmetic", "tools": tools}
    env = ToolEnv(env_config)
    turns = [
        "<price> brass lamp </price>",
        '<multiply> {"a": 7, "b": 12} </multiply>',
        "<answer> \\boxed{84} </answer>",
    ]
    script = in_turn([ScriptedReply(tokenizer.encode(turn, add_special_tokens=False)) for turn in turns])
    engine = ScriptedEngine(EngineConfig("none", engine_kwargs={"script": script, "vocab_size": len(tokenizer)}))

    async def sample():
        with ThreadPoolExecutor(1) as executor:
            async with EngineLoop(engine, executor) as loop:
                config = settings(num_rollouts=1, max_context_tokens=4096, max_response_tokens=2000)
                return await TreeSampler(env, loop, config, len(tokenizer), QuestionRef(0)).sample()

    (trajectory,) = asyncio.run(sample()).tree.trajectories
    called = [(turn.tool_call.name, turn.tool_call.status) for turn in trajectory.turns if turn.tool_call]
    assert called == [("price", OK), ("multiply", OK)]
    assert trajectory.stop_reason == StopReason.ANSWER
    responses = [tokenizer.decode(turn.observation.tolist()) for turn in trajectory.turns[:2]]
    assert [response.strip() for response in responses] == ["<result> 12 </result>", "<result> 84 </result>"]
