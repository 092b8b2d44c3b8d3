"""The endpoint: agents of the OpenAI SDK as worlds, what continues a conversation, and forks by a second run."""

from __future__ import annotations

import asyncio

import httpx2
import numpy as np
import pytest

from rllib_arpo.core.tree import StopReason
from rllib_arpo.engine.scripted_engine import ScriptedReply
from rllib_arpo.envs.errors import BrokenToolError
from rllib_arpo.envs.question import QA, Question
from rllib_arpo.envs.rewards import FinishedPath
from rllib_arpo.envs.tool_env import ToolEnv
from rllib_arpo.envs.worlds import Call, Opening, Turn
from rllib_arpo.envs.worlds.completions import Refused, read_request
from rllib_arpo.envs.worlds.maker import WorldMaker
from rllib_arpo.envs.worlds.registry import find_world
from rllib_arpo.envs.worlds.session import WorldSession
from rllib_arpo.rollout.episodes import episode_to_tree
from tests.helpers.api_agents import ADD, adder, threaded
from tests.helpers.chat_templates import QWEN25
from tests.helpers.models import byte_tokenizer
from tests.rollout.conftest import ended, settings

QUESTION = Question("q", (), (), QA, "q", row={"seed": 3})


def called(n: int) -> Turn:
    return Turn("", Call("add", {"n": n}), 5, 7)


def trunk_of(program, **options) -> WorldSession:
    return WorldSession(WorldMaker("The world", find_world({program: options})), QUESTION)


@pytest.mark.parametrize(
    ("agent", "options"),
    [(adder, {}), (adder, {"base_url": True}), (adder, {"base_url": True, "stream": True}), (threaded, {})],
)
def test_the_sdk_asks_and_its_calls_come_back(agent, options):
    async def played():
        trunk = trunk_of(agent, **options)
        await trunk.ready()
        root = trunk.fork_root()
        first = await root.say(called(1))
        child = root.fork()
        second = await child.say(called(5))
        third = await root.say(called(2))
        last = await root.say(Turn("That is all."))
        score = await root.score(FinishedPath(QUESTION, (), True))
        for play in (trunk, root, child):
            await play.close()
        return trunk.opening, [first, second, third, last], score.reward

    opening, (first, second, third, last), reward = asyncio.run(played())
    said = ({"role": "system", "content": "You add."}, {"role": "user", "content": "Begin at 3."})
    assert opening == Opening(said, (ADD,))
    assert first.messages == ({"role": "tool", "content": "4", "name": "add", "tool_call_id": "call_1"},)
    assert (second.messages[0]["content"], third.messages[0]["content"]) == ("9", "6")
    assert (last.done, last.messages, reward) == (True, (), 0.6)


async def told(endpoint, row):
    """What the endpoint answers to requests that are wrong, as one text that the model reads."""
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(endpoint.app), base_url=endpoint.base_url) as http:

        async def ask(*messages, **more):
            response = await http.post("chat/completions", json={"messages": list(messages), **more})
            body = response.json()
            return body["error"]["message"] if response.status_code == 400 else body["choices"][0]["message"]

        begin = {"role": "user", "content": [{"type": "text", "text": "Hello."}]}
        answer = await ask(begin)
        errors = [
            await ask(begin),
            await ask(begin, answer),
            await ask({"role": "user", "content": "Hello!"}, answer, begin),
            await ask(begin, {**answer, "content": "Another."}, begin),
            await ask(begin, answer, begin, tools=[ADD]),
            await ask(begin, answer, begin, n=2),
            await ask(begin, answer, {"role": "user", "content": [{"type": "image_url"}]}),
            await ask(begin, answer, {"role": "critic", "content": "No."}),
            await ask(begin, answer, begin, tools=["add"]),
            await ask(begin, answer, "On."),
            await ask(begin, answer, {"role": "user", "content": "On.", "name": "Ann"}),
        ]
        await ask(
            begin,
            answer,
            {"role": "user", "content": "On.", "name": "Ann"},
            errors[-1],
            {"role": "user", "content": "\n".join(errors[:-1])},
        )
    return 1.0


def test_requests_that_do_not_continue_are_refused_and_counted():
    async def played():
        play = trunk_of(told)
        await play.ready()
        first = await play.say(Turn("Hi."))
        second = await play.say(Turn("Well."))
        last = await play.say(Turn("So."))
        refused = play.refused
        await play.close()
        return first.messages, second.messages[-1]["content"].split("\n"), last.done, refused

    first, errors, done, refused = asyncio.run(played())
    apart = "This request does not continue the conversation of this trajectory: it must repeat it."
    assert first == ({"role": "user", "content": "On."},)
    assert errors == [
        apart,
        "This request adds no message to the conversation.",
        apart,
        apart,
        apart,
        "The endpoint gives one choice: n must be 1.",
        "The endpoint takes messages of text only.",
        "The endpoint takes messages of system, user, assistant, tool, not of 'critic'.",
        "The tools of a request must be a list of objects.",
        "A message is not one of chat completions (AttributeError: 'str' object has no attribute 'get').",
    ]
    assert (done, refused) == (True, 5)


def test_an_agent_whose_trajectory_has_ended_is_told_and_the_server_ends_with_the_last_one():
    async def played():
        play = trunk_of(threaded)
        await play.ready()
        base_url = (await play.ready())._endpoint.base_url
        async with httpx2.AsyncClient(base_url=base_url) as http:
            models = (await http.get("models")).json()["data"]
            other = trunk_of(adder)
            await other.ready()
            await play.close()
            gone = await http.post("chat/completions", json={"messages": []})
            await other.close()
        with pytest.raises(httpx2.ConnectError):
            async with httpx2.AsyncClient(base_url=base_url) as http:
                await http.get("models")
        return [model["id"] for model in models], gone.status_code, gone.json()["error"]["message"]

    assert asyncio.run(played()) == (["policy"], 404, "This trajectory has ended.")


def test_an_endpoint_needs_the_protocol_of_its_calls(tmp_path):
    byte_tokenizer().save_pretrained(tmp_path)
    with pytest.raises(
        ValueError, match=r"^env_config\['protocol'\] must be 'function_calling' for a world that takes"
    ):
        ToolEnv({"model_name_or_path": str(tmp_path), "world": adder, "protocol": "tags"})


def test_an_agent_that_fails_after_a_refused_request_is_broken():
    async def played():
        play = trunk_of(adder, compacts_at=4)
        with pytest.raises(
            BrokenToolError, match=r"failed after a refused request \(BadRequestError: .*continue"
        ) as raised:
            await play.say(called(1))
        refused = play.refused
        await play.close()
        return refused, raised.value

    assert asyncio.run(played())[0] == 1


def test_messages_as_templates_take_them():
    call = {"id": "a", "type": "function", "function": {"name": "add", "arguments": '{"n": 1}'}}
    body = {
        "messages": [
            {"role": "developer", "content": "Add."},
            {"role": "assistant", "content": None, "tool_calls": [call], "refusal": None},
            {"role": "tool", "tool_call_id": "a", "content": [{"type": "text", "text": "1"}]},
        ],
        "temperature": 0.2,
    }
    request = read_request(body)
    assert request.messages == (
        {"role": "system", "content": "Add."},
        {"role": "assistant", "content": "",
         "tool_calls": [{"type": "function", "function": {"name": "add", "arguments": {"n": 1}}}]},
        {"role": "tool", "content": "1", "name": "add", "tool_call_id": "a"},
    )  # fmt: skip
    assert request.functions == ()
    body["messages"][1]["tool_calls"] = [{**call, "function": {"name": "add", "arguments": "{"}}]
    with pytest.raises(Refused, match=r"^A message is not one of chat completions \(JSONDecodeError: "):
        read_request(body)


@pytest.fixture
def sample(tmp_path):
    """sample(program, numbers) -> the sampled questions: a root and a fork at its second call, then nothing more."""
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = QWEN25
    tokenizer.save_pretrained(tmp_path)

    def script(request, times):
        prompt = tokenizer.decode(request.prompt_token_ids)
        calls = prompt.count("<|im_start|>assistant") - 1
        call = f'<tool_call>\n{{"name": "add", "arguments": {{"n": {calls + 1 + times}}}}}\n</tool_call>'
        said = tokenizer.encode(call) if calls < 2 else [*tokenizer.encode("Done."), tokenizer.eos_token_id]
        return ScriptedReply(said, entropies=3.0 if calls == 1 else 1.0)

    def run(program, numbers, **options):
        env_config = {"model_name_or_path": str(tmp_path), "world": {program: options}, "protocol": "function_calling"}
        config = settings(num_rollouts=2, num_initial_rollouts=1, max_context_tokens=4000, max_response_tokens=2000)
        questions = ended(script, len(tokenizer), numbers, [ToolEnv(env_config)], config)
        return [questions[number] for number in numbers], tokenizer

    return run


def test_what_an_agent_adds_is_framed_by_the_template_and_turns_stay_as_sampled(sample):
    (question,), tokenizer = sample(adder, [1])
    tree = episode_to_tree(question.episode)
    assert (question.stats.num_forks, question.stats.rewards) == (1, (0.5, 0.6))
    assert question.stats.stop_reasons == (StopReason.WORLD_ENDED,) * 2
    root, fork = tree.trajectories
    # The twin: the template's text of the whole conversation.
    talk = [{"role": "system", "content": "You add."}, {"role": "user", "content": "Begin at 2."}]
    for n, total in ((1, 3), (2, 5)):
        call = {"type": "function", "function": {"name": "add", "arguments": {"n": n}}}
        talk += [{"role": "assistant", "content": "", "tool_calls": [call]}, {"role": "tool", "content": str(total)}]
    talk += [{"role": "assistant", "content": "Done."}]
    path = [piece for turn in tree.path(root.agent_id) for piece in (turn.token_ids, turn.observation)]
    text = tokenizer.decode(np.concatenate([tree.prompt, *path]))
    assert f"{text}\n" == tokenizer.apply_chat_template(talk, tools=[ADD], tokenize=False)
    assert fork.num_inherited_turns == 1
    assert len(fork.turns) == 2


def test_a_changed_message_is_a_refused_fork(sample):
    runs = iter(range(10))

    async def changing(endpoint, row):
        return await adder(endpoint, row, changed="another" if next(runs) == 1 else None)

    (question,), _ = sample(changing, [1])
    stats = question.stats
    assert (stats.forks_refused, stats.num_forks, stats.num_topped_up) == (1, 0, 1)
    assert stats.stop_reasons == (StopReason.WORLD_ENDED,) * 2
    (error,) = question.errors
    assert error.text == (
        "The world 'changing' cannot be repeated: turn 1, add {'n': 1}, got \"{'role': 'tool', 'content': 'another', "
        "'name': 'add', 'tool_call_id': 'call_1'}\" in place of \"{'role': 'tool', 'content': '3', "
        "'name': 'add', 'tool_call_id': 'call_1'}\""
    )


def test_a_shortened_history_is_counted_and_masks(sample):
    (question,), _ = sample(adder, [1], compacts_at=4)
    assert question.stats.requests_refused == 2
    assert set(question.stats.stop_reasons) == {StopReason.BROKEN_TOOL}
