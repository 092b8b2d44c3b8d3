"""Worlds of an OpenEnv server: what it says, forks by replay, and a server that is full, silent, or gone."""

from __future__ import annotations

import asyncio
import functools

import pytest
from websockets.asyncio.client import connect

from rllib_arpo.core.tree import ToolStatus
from rllib_arpo.envs.errors import BrokenToolError
from rllib_arpo.envs.worlds import Call
from rllib_arpo.envs.worlds.session import WorldSession
from tests.helpers import worlds
from tests.helpers.openenv_server import ADD, OpenEnvServer
from tests.helpers.other_python import free_port
from tests.helpers.worlds import texts as said


@pytest.fixture
def server():
    with OpenEnvServer() as server:
        yield server


def trunk_of(server, **options) -> WorldSession:
    return worlds.trunk_of({"openenv": {"url": server.url, "read": "message", **options}})


async def test_a_session_a_trajectory_whose_replies_pay(server):
    trunk = trunk_of(server)
    await trunk.ready()
    root = trunk.fork_root()
    found = await said(root, "1", "two", "3")
    child = root.fork()
    found += await said(child, "20")
    paid, score, end = child.paid, await child.score(None), await child.act("100")
    for play in (trunk, root, child):
        await play.close()
    async with asyncio.timeout(20):
        while server.open:  # The server has yet to notice.
            await asyncio.sleep(0.01)
    assert found == ["2", "that is no number", "5", "25"]
    assert (paid, score.accuracy, end.done, server.sessions) == (0.75, 0.75, True, 2)


@pytest.mark.parametrize(
    ("options", "text", "shown", "status"),
    [
        ({"read": None}, '{"message": "4"}', "5", "ok"),
        ({"read": None}, "4", "An action is one JSON object.", "error"),
        ({"read": "number"}, "4", "Invalid message. message: Field required", "error"),
        ({"read": lambda text: {"message": str(len(text))}}, "four", "5", "ok"),
        ({"read": lambda text: {"message": str(1 // 0)}}, "four", "integer division or modulo by zero.", "error"),
        ({"show": "message"}, "4", "5", "ok"),
        ({"show": lambda fields: f"now {fields['message']}"}, "4", "now 5", "ok"),
    ],
)
async def test_texts_are_read_and_observations_shown(server, options, text, shown, status):
    play = trunk_of(server, **options)
    reply = await play.act(text)
    await play.close()
    assert (reply.text, reply.status) == (shown, ToolStatus(status))


async def test_the_servers_tools_are_called(server):
    play = trunk_of(server, tools=True)
    tools = {"add": {**ADD["input_schema"], "description": "Adds a number."}}
    world = await play.ready()
    replies = [await world.act(Call("add", {"number": number})) for number in (2, 3)]
    await play.close()
    assert (world.takes_text, dict(world.tools)) == (False, tools)
    assert [reply.text for reply in replies] == ["3", "6"]


async def test_a_lost_connection_is_a_new_session_where_everything_is_repeated(server):
    crashed = f"The world was lost twice in one action ({server.url.replace('http', 'ws')}/ws: it crashed)."
    play = trunk_of(server).fork()
    found = await said(play, "5")
    await asyncio.to_thread(server.cut)
    found += await said(play, "1", "crash", "1")
    await play.close()
    assert found == ["6", "7", crashed, "8"]
    assert server.sessions == 4


def test_only_the_worlds_time_limit_holds_while_a_connection_opens(monkeypatch):
    monkeypatch.setattr("websockets.asyncio.client.connect", functools.partial(connect, open_timeout=0.1))
    with OpenEnvServer(open_s=0.5) as server:
        assert asyncio.run(said(trunk_of(server), "1")) == ["2"]
        with pytest.raises(BrokenToolError, match=r"^OpenEnvWorld did not answer in 0\.2 s\.$"):
            asyncio.run(said(trunk_of(server, timeout_s=0.2), "1"))


def test_a_server_that_is_full_or_silent_or_gone_is_a_broken_tool(caplog):
    async def broken(play: WorldSession, text: str = "1") -> str:
        with pytest.raises(BrokenToolError) as raised:
            await play.act(text)
        await play.close()
        return str(raised.value)

    async def played(server):
        first = trunk_of(server, timeout_s=0.5).fork()
        found = [*await said(first, "1"), await broken(trunk_of(server)), await broken(first, "sleep")]
        server.url = f"http://127.0.0.1:{free_port()}"
        return [*found, await broken(trunk_of(server))]

    with OpenEnvServer(max_sessions=1) as server:
        found = asyncio.run(played(server))
    full, gone = found[1].partition("/ws: ")[2], found[3].partition("/ws ")[2]
    assert [found[0], full, found[2]] == ["2", "Server at capacity: 1.", "OpenEnvWorld did not answer in 0.5 s."]
    assert gone.startswith("cannot be reached ([Errno 111]")
    assert "raise its max_concurrent_envs" in caplog.text
