"""Programs as worlds: what they ask and return, and their errors."""

from __future__ import annotations

import asyncio

import pytest

from rllib_arpo.envs.errors import BrokenToolError, ContractError, ToolError
from rllib_arpo.envs.rewards import FinishedPath, Score
from rllib_arpo.envs.support.chat_client import ChatClient
from tests.docs.pages import REPOSITORY, snippets
from tests.helpers.api_agents import trunk_of
from tests.helpers.worlds import QUESTION, texts

PATH = FinishedPath(QUESTION, ("1",), True)


async def odd(chat, row, *, does):
    """Does what a program may not do, or raises it."""
    if does == "nothing":
        return 1.0
    if does == "asks two things at once":
        await asyncio.gather(chat("a"), chat("b"))
    asked = asyncio.ensure_future(chat(1 if does == "asks a number" else "a"))
    if does == "does not wait":
        await asyncio.sleep(0)
        asked.cancel()
        await asyncio.sleep(60)
    await asked
    if isinstance(does, BaseException):
        raise does


@pytest.mark.parametrize(
    ("does", "error", "message"),
    [
        ("nothing", ContractError, "The program 'odd' returned before it asked anything."),
        ("asks a number", ContractError, "The program 'odd' must ask with a text, not 1."),
        ("asks two things at once", ContractError,
         "The program 'odd' asked before the model had answered; it may ask one thing at a time."),
        ("does not wait", ContractError, "The program 'odd' did not wait for the model's answer."),
        ("returns no number", ContractError, "The program 'odd': the reward must be a finite number, not None."),
        (ToolError("no user"), BrokenToolError, "The program 'odd': no user"),
        (BrokenToolError("no disk"), BrokenToolError, "no disk"),
        (KeyError("a"), KeyError, "'a'"),
        (SystemExit(2), RuntimeError, "The program 'odd' raised SystemExit(2)"),
    ],
)  # fmt: skip
async def test_what_a_program_may_not_do_and_its_errors_are_one_sentence(does, error, message):
    with pytest.raises(error) as raised:
        await texts(trunk_of(odd, does=does), "go", "on")
    assert str(raised.value) == message
    noted = ["tool: The program 'odd'"] if error in (KeyError, RuntimeError) else []
    assert getattr(raised.value, "__notes__", []) == noted


async def test_a_program_is_cancelled_with_its_trajectory():
    ended = []

    async def patient(chat, row):
        try:
            await chat("a")
        finally:
            ended.append(row)

    play = trunk_of(patient)
    await play.ready()
    await play.close()
    assert ended == [{"seed": 3}]


async def test_the_simulated_user_of_the_documentation_repeats_itself(tmp_path, monkeypatch):
    """A model that never says the same twice: with its cache forks are what their parents were."""
    (snippet,) = [
        snippet for snippet in snippets(REPOSITORY / "docs" / "environments.md", "python") if snippet.file == "lamp.py"
    ]
    names: dict = {}
    monkeypatch.chdir(tmp_path)
    exec(snippet.text, names)
    asked = []

    async def answer(self, messages, is_readable):
        asked.append(messages)
        return f"My offer number {len(asked)} is 30 dollars."

    monkeypatch.setattr(ChatClient, "_ask", answer)
    trunk = trunk_of(names["bargain"])
    await trunk.ready()
    root = trunk.fork_root()
    offers = await texts(root, "20?", "25?")
    assert await root.fork().score(PATH) is None
    child = root.fork()
    await child.ready()
    parents, childs = [await texts(play, "30!", "I take it.") for play in (root, child)]
    assert offers == ["My offer number 2 is 30 dollars.", "My offer number 3 is 30 dollars."]
    assert parents == childs == ["My offer number 4 is 30 dollars.", ""]
    assert await child.score(PATH) == Score(0.7, 0.7)


async def test_a_program_that_does_not_end_when_it_is_cancelled_is_left_alone(monkeypatch, caplog):
    monkeypatch.setattr("rllib_arpo.envs.worlds.program.CLOSE_TIMEOUT_S", 0.05)

    async def stubborn(chat, row):
        try:
            return await chat("again?")
        except asyncio.CancelledError:
            return await asyncio.sleep(60.0, 0.0)

    sessions = [trunk_of(stubborn), trunk_of(stubborn)]
    for session in sessions:
        await session.ready()
        await session.close()
    assert caplog.messages == [
        "The program 'stubborn' has not ended 0.05 s after it was cancelled: nobody waits for it any more."
    ]
