"""Requests that the endpoint refuses: what the agent reads, what is counted, and how its trajectory ends."""

from __future__ import annotations

import asyncio

import httpx2

from rllib_arpo.core.tree import StopReason
from rllib_arpo.envs.worlds import WholeTurn
from tests.helpers.api_agents import adder, client_of, said, trunk_of, user
from tests.helpers.chat_templates import calling_folder
from tests.helpers.trees import endings

WRONG = {"id": "a", "type": "function", "function": {"name": "add", "arguments": "{"}}


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
            await ask(begin, answer),
            await ask(begin, answer, begin, n=2),
            await ask(begin, answer, {"role": "user", "content": [{"type": "image_url"}]}),
            await ask(begin, answer, {"role": "critic", "content": "No."}),
            await ask(begin, answer, begin, tools=["add"]),
            await ask(begin, answer, "On."),
            await ask(begin, answer, {"role": "assistant", "tool_calls": [WRONG]}),
            *[
                (await http.post(path, json={"input": "Hi"})).json()["error"]["message"]
                for path in ("responses", "v1/messages")
            ],
            (await http.get("chat/completions")).json()["error"]["message"],
        ]
        await ask(begin, answer, {"role": "user", "content": "\n".join(errors), "name": "Ann"})
    return 1.0


async def test_wrong_requests_are_refused_and_counted():
    play = trunk_of(told)
    await play.ready()
    first = await play.act(WholeTurn("Hi."))
    last = await play.act(WholeTurn("So."))
    refused = play.maker.sample.take_refused()
    await play.close()
    (message,) = first.messages
    assert (message["role"], last.done, refused) == ("user", True, 10)
    assert message["content"].split("\n") == [
        "This request adds no message to the conversation.",
        "The endpoint gives one choice: n must be 1.",
        "The endpoint takes messages of text only.",
        "The endpoint takes messages of system, user, assistant, tool, not of 'critic'.",
        "The tools of a request must be a list of objects.",
        "A message is not one of chat completions (AttributeError: 'str' object has no attribute 'get').",
        "A message is not one of chat completions (JSONDecodeError: Expecting property name enclosed in double quotes: "
        "line 1 column 2 (char 1)).",
        *[
            f"The endpoint answers POST /v1/chat/completions and GET /v1/models, not {asked}."
            for asked in ("POST /v1/responses", "POST /v1/v1/messages", "GET /v1/chat/completions")
        ],
    ]


async def fails_after_a_refusal(endpoint, row):
    await adder(endpoint, row)
    return await adder(endpoint, row, n=2)


def test_a_refused_request_is_counted_and_masks_if_the_agent_fails(sample):
    (question,), _ = sample(fails_after_a_refusal, [1])
    assert question.requests_refused == 2
    assert set(endings(question.tree)) == {StopReason.BROKEN_TOOL}


async def hopeless(endpoint, row):
    """Asks twice for two answers; question 0 begins with that, and fails; others wait for the deadline then."""
    async with client_of(endpoint) as http:
        if row["seed"] != 0:
            await said(http, user("Hi."))
        for _ in range(2):
            refused = await http.post("chat/completions", json={"messages": [user("Hi.")], "n": 2})
        if row["seed"] == 0:
            refused.raise_for_status()
        await asyncio.sleep(60)


def test_refused_requests_are_counted_however_their_question_or_trajectory_ends(sample):
    (failed, question), _ = sample(hopeless, [0, 1], deadline_s=1.0)
    assert failed.failure.message.startswith("BrokenToolError: The program 'hopeless' failed after a refused request")
    assert (endings(question.tree), question.requests_refused) == ((StopReason.DEADLINE,), 4)


SYSTEM = {"role": "system", "content": "Be brief."}


async def brief(endpoint, row, times=1, alone=False):
    """Sends messages that the template does not take, and then what it was told; with `alone` as its first request."""
    async with client_of(endpoint) as http:
        talk = [] if alone else [user("You check."), await said(http, user("You check."))]
        for _ in range(times):
            refused = await http.post("chat/completions", json={"messages": [*talk, user("Hi."), SYSTEM]})
        await said(http, *talk, user(f"{refused.status_code}: {refused.json()['error']['message']}"))
    return 1.0


def test_messages_that_the_template_does_not_take_are_a_refused_request_also_in_a_fork(sample):
    (question,), tokenizer = sample(brief, [1])
    root, fork = question.tree.trajectories
    told = "The chat template cannot render these messages: The system message comes first."
    assert tokenizer.decode(root.turns[0].observation) == (
        f"\n<|im_start|>user\n400: {told}<|im_end|>\n<|im_start|>assistant\n"
    )
    assert (question.requests_refused, question.tree.returns().tolist()) == (2, [1.0, 1.0])
    assert (fork.parent, fork.num_inherited_turns, len(fork.turns)) == ("0", 1, 1)
    (limited, _), _ = sample(brief, [1, 2], times=100)
    assert endings(limited.tree) == (StopReason.TOOL_CALL_LIMIT,) * 2
    (failed,), _ = sample(brief, [1], alone=True)
    assert failed.failure.message == f"UnreadableError: {told}"


def test_a_task_s_own_tools_are_not_made_beside_an_agent_of_an_api(make_tool_env, tmp_path):
    asked = {"task": "arithmetic", "model_name_or_path": calling_folder(tmp_path)}
    assert make_tool_env(world=adder, protocol="function_calling", **asked).tool_names == ("text",)
