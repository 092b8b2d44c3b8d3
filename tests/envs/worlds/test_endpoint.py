"""The endpoint: agents of the OpenAI SDK as worlds, what continues a conversation, and forks by a second run."""

from __future__ import annotations

import asyncio
import contextlib
import re

import httpx2
import numpy as np
import pytest

from rllib_arpo.core.figures import new_contexts
from rllib_arpo.core.tree import StopReason, context_after, depth_first_layout, known_beginnings
from rllib_arpo.envs.rewards import FinishedPath
from rllib_arpo.envs.worlds import Call, Opening, WholeTurn
from rllib_arpo.envs.worlds.completions import Refused, read_request
from rllib_arpo.envs.worlds.world import BEGINS
from tests.helpers.api_agents import ADD, adder, client_of, said, threaded, trunk_of, user
from tests.helpers.trees import endings
from tests.helpers.worlds import QUESTION


def called(n: int) -> WholeTurn:
    return WholeTurn("", Call("add", {"n": n}), 5, 7)


@pytest.mark.parametrize(
    ("agent", "options"),
    [(adder, {}), (adder, {"base_url": True}), (adder, {"base_url": True, "stream": True}), (threaded, {})],
)
async def test_the_sdk_asks_and_its_calls_come_back(agent, options):
    trunk = trunk_of(agent, **options)
    await trunk.ready()
    root = trunk.fork_root()
    first = await root.say(called(1))
    child = root.fork()
    second = await child.say(called(5))
    third = await root.say(called(2))
    last = await root.say(WholeTurn("That is all."))
    score = await root.score(FinishedPath(QUESTION, (), True))
    for play in (trunk, root, child):
        await play.close()
    said = ({"role": "system", "content": "You add."}, {"role": "user", "content": "Begin at 3."})
    assert trunk.opening == Opening(said, (ADD,))
    assert first.messages == ({"role": "tool", "content": "4", "name": "add", "tool_call_id": "call_1"},)
    assert (second.messages[0]["content"], third.messages[0]["content"]) == ("9", "6")
    assert (last.done, last.messages, score.reward) == (True, (), 0.6)


async def wanders(endpoint, row):
    """Begins conversations, and comes back to earlier ones."""
    async with client_of(endpoint) as http:
        main = [user("Plan."), await said(http, user("Plan."))]
        await said(http, {"role": "system", "content": "You help."}, user("How?"))
        main += [user("On."), await said(http, *main, user("On."))]
        await said(http, *main[:2], user("Otherwise."))
        await said(http, user("Plan."))
        await said(http, *main, user("With a tool."), tools=[ADD])
        await said(http, {**main[1], "content": "Changed."}, user("So?"))
    return 1.0


async def test_a_request_goes_on_with_the_conversation_that_it_repeats_or_begins_another():
    play = trunk_of(wanders)
    await play.ready()
    found = [await play.say(WholeTurn(f"{i}.")) for i in range(7)]
    refused = play.maker.sample.take_refused()
    await play.close()
    said = [(reply.follows, [message["content"] for message in reply.messages]) for reply in found]
    assert said == [
        (BEGINS, ["You help.", "How?"]),
        (0, ["On."]),
        (0, ["Otherwise."]),
        (BEGINS, ["Plan."]),
        (BEGINS, ["Plan.", "0.", "On.", "2.", "With a tool."]),
        (BEGINS, ["Changed.", "So?"]),
        (None, []),
    ]
    assert [reply.functions for reply in found[3:6]] == [(), (ADD,), ()]
    assert (found[-1].done, refused) == (True, 0)


async def parallel(endpoint, row):
    """Asks two helpers at once, and the second one twice because it waits too long."""
    async with client_of(endpoint) as http:
        begun = asyncio.create_task(said(http, user("One.")))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(said(http, user("Two.")), 0.05)
        again = said(http, user("Two."), headers={"x-stainless-retry-count": "1"})
        answers = await asyncio.gather(begun, again)
        after = await said(http, user("Two."), headers={"x-stainless-retry-count": "1"})
    return float("".join(answer["content"] for answer in (*answers, after)))


async def test_requests_at_once_take_turns_and_a_repeated_one_gets_the_same_answer():
    play = trunk_of(parallel)
    await play.ready()
    await asyncio.sleep(0.1)
    second, last = [await play.say(WholeTurn(word)) for word in "12"]
    score = await play.score(FinishedPath(QUESTION, (), True))
    refused = play.maker.sample.take_refused()
    await play.close()
    assert (play.opening, second.messages) == (Opening((user("One."),)), (user("Two."),))
    assert (last.done, score.reward, refused) == (True, 122.0, 0)


async def test_an_agent_whose_trajectory_has_ended_is_told_and_the_server_ends_with_the_last_one():
    async def told(play, path: str, **more) -> tuple[int, str]:
        answer = await http.post(f"{base_urls[play]}/{path}", **more)
        return answer.status_code, answer.json()["error"]["message"]

    one, other = trunk_of(threaded), trunk_of(adder)
    async with httpx2.AsyncClient() as http:
        base_urls = {play: (await play.ready())._endpoint.base_url.rstrip("/") for play in (one, other)}
        models = (await http.get(f"{base_urls[one]}/models")).json()["data"]
        await one.close()
        gone = [await told(one, path, json={"messages": []}) for path in ("chat/completions", "responses")]
        wrong = await told(other, "chat/completions", content="{")
        assert other.maker.sample.take_refused() == 1
        await other.close()
    async with httpx2.AsyncClient() as http:
        with pytest.raises(httpx2.ConnectError):
            await http.get(f"{base_urls[one]}/models")
    assert [model["id"] for model in models] == ["policy"]
    assert gone == [(404, "This trajectory has ended.")] * 2
    assert wrong == (400, "A request must be a JSON object with a list of messages.")


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


def test_what_an_agent_adds_is_framed_by_the_template_and_turns_stay_as_sampled(sample):
    (question,), tokenizer = sample(adder, [1])
    tree = question.tree
    assert (len(tree.forks()), tree.returns().tolist()) == (1, [0.5, 0.6])
    assert endings(tree) == (StopReason.WORLD_ENDED,) * 2
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
    assert (question.forks_refused, len(question.tree.forks()), len(question.tree.initial())) == (1, 0, 1)
    assert endings(question.tree) == (StopReason.WORLD_ENDED,) * 2
    (error,) = question.errors
    assert error.text == (
        "The world 'changing' cannot be repeated: turn 1, add {'n': 1}, got \"{'role': 'tool', 'content': 'another', "
        "'name': 'add', 'tool_call_id': 'call_1'}\" in place of \"{'role': 'tool', 'content': '3', "
        "'name': 'add', 'tool_call_id': 'call_1'}\""
    )


def rendered(tokenizer, *talk, tools=None):
    """The twin: the template's text of a whole conversation, up to the end of its last message."""
    return tokenizer.apply_chat_template(list(talk), tools=tools, tokenize=False).removesuffix("<|im_end|>\n")


def call_of(n):
    call = {"type": "function", "function": {"name": "add", "arguments": {"n": n}}}
    return {"role": "assistant", "content": "", "tool_calls": [call]}


def texts(tokenizer, tree, trajectory):
    """What each turn has read and written, decoded."""
    path = tree.path(trajectory.agent_id)
    return [
        tokenizer.decode([*context_after(tree.prompt, path[:i]), *turn.token_ids]).removesuffix("<|im_end|>")
        for i, turn in enumerate(path)
    ]


def test_a_shortened_history_begins_another_conversation_with_the_run_s_reward(sample):
    (question,), tokenizer = sample(adder, [1], compacts_at=4)
    tree = question.tree
    root, fork = tree.trajectories
    assert (len(tree.forks()), question.requests_refused, new_contexts(tree)) == (1, 0, 1)
    assert endings(tree) == (StopReason.WORLD_ENDED,) * 2
    begin = {"role": "system", "content": "You add."}
    common = len(tokenizer.encode(rendered(tokenizer, begin, user("Begin at 2."), tools=[ADD]).partition("Begin")[0]))
    assert [turn.new_context for turn in root.turns] == [True, False, False, False]
    assert known_beginnings(tree, depth_first_layout(tree))[0].num_tokens == common
    assert tree.path("0.0")[: fork.num_inherited_turns] == list(root.turns[: fork.num_inherited_turns])
    second = [begin, user("So far: 3."), call_of(1), {"role": "tool", "content": "4"}]
    assert texts(tokenizer, tree, root) == [
        rendered(tokenizer, begin, user("Begin at 2."), call_of(1), tools=[ADD]),
        rendered(tokenizer, *second[:3], tools=[ADD]),
        rendered(tokenizer, *second, call_of(2), tools=[ADD]),
        rendered(tokenizer, *second, call_of(2), {"role": "tool", "content": "6"},
                 {"role": "assistant", "content": "Done."}, tools=[ADD]),
    ]  # fmt: skip
    assert tree.returns().tolist() == [0.6, (4 + fork_calls(tokenizer, fork)) / 10]


def fork_calls(tokenizer, fork):
    said = "".join(tokenizer.decode(turn.token_ids) for turn in fork.turns)
    return sum(int(n) for n in re.findall(r'"n": (\d+)', said))


def test_a_helper_s_conversation_is_one_of_its_own_and_the_first_goes_on_after_it(sample):
    (question,), tokenizer = sample(adder, [1], helped=True)
    tree = question.tree
    root, fork = tree.trajectories
    assert (len(tree.forks()), question.requests_refused, new_contexts(tree)) == (1, 0, 6)
    assert endings(tree) == (StopReason.WORLD_ENDED,) * 2
    asked = {"role": "system", "content": "You check."}
    right = {"role": "assistant", "content": "Right."}
    talk = [{"role": "system", "content": "You add."}, user("Begin at 2."), call_of(1)]
    talk += [{"role": "tool", "content": "3 (Right.)"}, call_of(2), {"role": "tool", "content": "5 (Right.)"}]
    assert texts(tokenizer, tree, root) == [
        rendered(tokenizer, *talk[:3], tools=[ADD]),
        rendered(tokenizer, asked, user("Is it 3?"), right),
        rendered(tokenizer, *talk[:5], tools=[ADD]),
        rendered(tokenizer, asked, user("Is it 5?"), right),
        rendered(tokenizer, *talk, {"role": "assistant", "content": "Done."}, tools=[ADD]),
    ]
    assert [turn.new_context for turn in root.turns] == [True, True, True, True, False]
    layout = depth_first_layout(tree)
    begun = [known.node for known in known_beginnings(tree, layout)[: len(root.turns) - 1]]
    # The helper's first conversation begins like the adder's, its second like its first; the adder's goes on twice.
    assert begun == [0, 0, 1, 2]
    assert fork.num_inherited_turns == 2
    assert texts(tokenizer, tree, fork)[:2] == texts(tokenizer, tree, root)[:2]
