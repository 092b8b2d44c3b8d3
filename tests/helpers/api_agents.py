"""Agents that were written for an API of chat completions, one of them a process of its own."""

from __future__ import annotations

import asyncio
import json
import sys
from typing import TYPE_CHECKING

import httpx2
import openai

from tests.helpers import framework_agents

# Not imported by each process of an agent, of which a run starts dozens.
if TYPE_CHECKING:
    from rllib_arpo.envs.worlds.session import WorldSession

ADD = {
    "type": "function",
    "function": {
        "name": "add",
        "description": "Adds.",
        "parameters": {"type": "object", "properties": {"n": {"type": "integer"}}},
    },
}
BEGIN = [{"role": "system", "content": "You add."}]


async def add(
    client: openai.AsyncOpenAI, total: int, *, stream=False, compacts_at=None, changed=None, helped=False
) -> float:
    """As the SDK's users write it: a loop of calls, until the model says something without one.

    Args:
        compacts_at: the number of messages at which the history is shortened, once.
        changed: replaces the result of the first call.
        helped: whether each result has what another agent says of it, which has a prompt of its own and no tools.
    """
    messages = [*BEGIN, {"role": "user", "content": f"Begin at {total}."}]
    while True:
        asked = {"model": "policy", "messages": messages, "tools": [ADD]}
        if stream:
            chunks = [chunk async for chunk in await client.chat.completions.create(**asked, stream=True)]
            message = chunks[0].choices[0].delta
        else:
            message = (await client.chat.completions.create(**asked)).choices[0].message
        if not message.tool_calls:
            return total / 10
        messages.append(message.model_dump(exclude_none=True))
        for call in message.tool_calls:
            total += json.loads(call.function.arguments)["n"]
            result = changed if changed and len(messages) == 3 else str(total)
            if helped:
                question = [{"role": "system", "content": "You check."}, {"role": "user", "content": f"Is it {total}?"}]
                checked = await client.chat.completions.create(model="policy", messages=question)
                result += f" ({checked.choices[0].message.content})"
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
        if len(messages) == compacts_at:
            messages, compacts_at = [*BEGIN, {"role": "user", "content": f"So far: {total}."}], None


def trunk_of(program, **options) -> WorldSession:
    from tests.helpers import worlds

    return worlds.trunk_of({program: options}, seed=3)


def client_of(endpoint):
    return httpx2.AsyncClient(transport=httpx2.ASGITransport(endpoint.app), base_url=endpoint.base_url)


def user(text):
    return {"role": "user", "content": text}


async def said(http, *messages, headers=None, **more):
    response = await http.post("chat/completions", json={"messages": list(messages), **more}, headers=headers)
    return response.json()["choices"][0]["message"]


async def adder(endpoint, row, *, base_url=False, **options):
    """In this process: through the application, or through a socket."""
    transport = None if base_url else httpx2.ASGITransport(endpoint.app)
    async with httpx2.AsyncClient(transport=transport) as http:
        client = openai.AsyncOpenAI(base_url=endpoint.base_url, api_key="none", http_client=http)
        return await add(client, row["seed"], **options)


async def threaded(endpoint, row):
    """In a thread of this process, which it blocks."""
    return await asyncio.to_thread(lambda: asyncio.run(adder(endpoint, row, base_url=True)))


async def process(endpoint, row):
    """In a process of its own, which knows the address only."""
    return await _printed(sys.executable, "-m", __name__, endpoint.base_url, str(row["seed"]))


async def framework(endpoint, row, *, interpreter, kind):
    """In a process of another Python, where its packages are."""
    return await _printed(interpreter, framework_agents.__file__, kind, endpoint.base_url, str(row["seed"]))


async def _printed(*command: str) -> float:
    """The number that a process prints, which ends with the program that waits for it."""
    agent = await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)
    try:
        told, _ = await agent.communicate()
    except asyncio.CancelledError:
        agent.kill()
        await agent.wait()
        raise
    return float(told)


if __name__ == "__main__":
    print(asyncio.run(add(openai.AsyncOpenAI(base_url=sys.argv[1], api_key="none"), int(sys.argv[2]))))
