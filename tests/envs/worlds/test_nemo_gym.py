"""Worlds of a NeMo Gym resources server: its rows, its tools and cookies, its score, and connections that are lost."""

from __future__ import annotations

import asyncio
import json

import pytest

from rllib_arpo.core.tree import StopReason, ToolStatus
from rllib_arpo.envs.errors import BrokenToolError, DataError
from rllib_arpo.envs.rewards import FinishedPath, Score
from rllib_arpo.envs.tasks import DatasetTask
from rllib_arpo.envs.worlds import Call
from rllib_arpo.envs.worlds.nemo_gym import tools_of_rows
from rllib_arpo.envs.worlds.registry import find_world
from rllib_arpo.envs.worlds.session import WorldSession
from tests.helpers import worlds
from tests.helpers.nemo_gym_server import ROW, SCHEMA, nemo_gym_server

ONE, TWO, VALUE = Call("increment", {"count": 1}), Call("increment", {"count": 2}), Call("value", {})


@pytest.fixture
def server():
    with nemo_gym_server() as counters:
        yield counters


@pytest.fixture
def rows(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text(json.dumps(ROW) + "\n")
    return str(path)


def trunk_of(server, **options) -> WorldSession:
    return worlds.trunk_of({"nemo_gym": {"url": server.url, **options}}, **ROW)


def finished(last: str) -> FinishedPath:
    return FinishedPath(worlds.QUESTION, ("a call", last), True, None)


async def texts(play: WorldSession, *calls: Call) -> list[str]:
    return [(await play.act(call)).text for call in calls]


def test_rows_are_questions_and_have_the_tools(rows):
    question = DatasetTask(task="nemo_gym", path=rows).question(0)
    assert question.messages == (("system", "Count."), ("user", "Add 1 and 2."))
    assert question.row == ROW
    assert tools_of_rows(rows) == {
        "increment": {**SCHEMA, "description": "Adds a count."},
        "value": {"type": "object", "properties": {}, "description": ""},
    }


@pytest.mark.parametrize("row", ["{}", '{"responses_create_params": {"input": [{"role": "tool", "content": ""}]}}'])
def test_a_wrong_row_names_its_place(tmp_path, row):
    path = tmp_path / "rows.jsonl"
    path.write_text(row)
    with pytest.raises(DataError, match=r"rows\.jsonl, row 0: `responses_create_params` must have messages of texts"):
        DatasetTask(task="nemo_gym", path=str(path)).question(0)


async def test_a_cookie_a_trajectory_forks_by_replay_and_the_servers_score(server):
    done = '{"success": true}'
    trunk = trunk_of(server)
    await trunk.ready()
    root = trunk.fork_root()
    found = await texts(root, ONE)
    child = root.fork()
    found += [*await texts(root, TWO, VALUE), *await texts(child, ONE, VALUE)]
    scores = [await play.score(finished("6")) for play in (root, child)]
    for play in (trunk, root, child):
        await play.close()
    assert found == [done, done, '{"count": 6}', done, '{"count": 5}']
    assert [(score.reward, score.accuracy) for score in scores] == [(1.0, 1.0), (0.0, 0.0)]
    assert sorted(server.counts.values()) == [5, 6]
    assert server.verified[0]["expected_count"] == 6
    assert server.verified[0]["response"]["output"] == [
        {"type": "function_call", "call_id": "call_0", "name": "increment", "arguments": '{"count": 1}'}
        | {"status": "completed"},
        {"type": "function_call_output", "call_id": "call_0", "output": done},
        {"type": "function_call", "call_id": "call_2", "name": "increment", "arguments": '{"count": 2}'}
        | {"status": "completed"},
        {"type": "function_call_output", "call_id": "call_2", "output": done},
        {"type": "function_call", "call_id": "call_4", "name": "value", "arguments": "{}", "status": "completed"},
        {"type": "function_call_output", "call_id": "call_4", "output": '{"count": 6}'},
        {"type": "message", "id": "message", "role": "assistant", "status": "completed"}
        | {"content": [{"type": "output_text", "text": "6", "annotations": []}]},
    ]


async def test_a_servers_error_is_what_the_model_reads(server):
    play = trunk_of(server).fork()
    reply = await play.act(Call("increment", {"count": 13}))
    await play.close()
    assert (reply.text, reply.status) == ('{"error": "13 is not a count"}', ToolStatus.ERROR)


async def test_a_lost_connection_is_a_new_session_where_everything_is_repeated(server):
    play = trunk_of(server).fork()
    await texts(play, ONE)
    server.drops = 1
    found = await texts(play, TWO, VALUE)
    server.drops = 1
    score = await play.score(finished("6"))
    await play.close()
    assert (found, score) == (['{"success": true}', '{"count": 6}'], Score(1.0, 1.0))


def test_a_server_that_is_gone_or_refuses_its_own_paths_is_a_broken_tool(server):
    async def broken(act, play):
        with pytest.raises(BrokenToolError) as raised:
            await act(play)
        await play.close()
        return str(raised.value).replace(server.url, "")

    async def played():
        play, other = trunk_of(server).fork(), trunk_of(server).fork()
        await texts(play, ONE)
        await texts(other, ONE)
        server.status = 503
        found = [await broken(lambda play: play.act(ONE), play)]
        server.status, server.drops = 0, 2
        found.append(await broken(lambda play: play.score(finished("6")), other))
        server.status = 422
        found.append(await broken(WorldSession.ready, trunk_of(server)))
        server.drops = 1
        return [*found, await broken(WorldSession.ready, trunk_of(server))]

    first, second, third, fourth = asyncio.run(played())
    assert (first, third) == ("/increment: 503", "/seed_session: 422 {}")
    assert second.startswith("/seed_session: ") and fourth.startswith("/seed_session: ")


async def test_a_server_of_turns(server):
    trunk = trunk_of(server, turns=True)
    await trunk.ready()
    root = trunk.fork_root()
    first = await root.say("1")
    child = root.fork()
    second, other = await root.say("2"), await child.say("1")
    accuracy = (await root.score(finished("2"))).accuracy
    for play in (trunk, root, child):
        await play.close()
    assert (trunk.opening, first.text, other.text) == ("go", "at 4", "at 5")
    assert (second.reward, second.done, accuracy) == (0.5, True, 0.5)
    assert sorted(server.closed) == ["s0", "s1"]
    assert [len(body["response"]["output"]) for body in server.verified] == [1, 1, 1, 1]


def test_an_environment_with_rows_tools_and_score(server, rows, begun, turn):
    env = begun(world={"nemo_gym": {"url": server.url, "tools": rows}}, task="nemo_gym", path=rows)
    prompt = env.tokenizer.decode(env._prompt.tolist())
    assert "Add 1 and 2." in prompt and "Count." in prompt
    assert '{"success": true}' in turn(env, "0", '<increment> {"count": 3} </increment>')[0]
    _, reward, info, done = turn(env, "0", "done")
    asyncio.run(env.close_question())
    assert (reward, info.stop_reason, done) == (1.0, StopReason.ANSWER, True)


def test_wrong_options_are_one_sentence():
    with pytest.raises(ValueError, match=r"^env_config\['world'\]: nemo_gym: 'url' must be like "):
        find_world({"nemo_gym": {"url": "127.0.0.1"}})
