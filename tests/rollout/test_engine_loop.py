"""Requests of several coroutines: what one of them meets does not concern the others."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest

from rllib_arpo.engine.engine import EntropyReady, GenerationRequest
from rllib_arpo.engine.scripted_engine import ScriptedReply
from rllib_arpo.rollout.engine_loop import EngineLoop
from tests.helpers.scripted_env import ANSWER
from tests.helpers.scripts import answer, in_turn, scripted_engine


def with_loop(engine, function):
    """The result of a coroutine function of the engine's loop."""

    async def main():
        with ThreadPoolExecutor(1) as executor:
            async with EngineLoop(engine, executor) as loop:
                return await function(loop)

    return asyncio.run(main())


def test_a_cancelled_request_forks_nothing():
    """Its entropies arrive in the engine step after the deadline, before its coroutine has seen the cancellation."""
    forks = []

    async def cancel(loop):
        request = GenerationRequest("cancelled", [1], max_tokens=1000, entropy_window=2)
        task = asyncio.create_task(loop.generate(request, forks.append))
        while "cancelled" not in loop._pending:
            await asyncio.sleep(0)
        task.cancel()
        # What a step brings before the task has run:
        loop._dispatch(EntropyReady("cancelled", np.zeros(2, np.float32)))
        await asyncio.gather(task, return_exceptions=True)

    with_loop(scripted_engine(lambda *_: ScriptedReply([7] * 1000)), cancel)
    assert forks == []


def test_a_refused_request_fails_alone():
    """The engine refuses a prompt of another vocabulary; the request beside it goes on."""
    engine = scripted_engine(lambda *_: answer(7))
    submit = engine.submit

    def picky(request):
        if request.prompt_token_ids == [999]:
            raise ValueError("token 999 is not in the vocabulary")
        submit(request)

    engine.submit = picky
    requests = [GenerationRequest(str(token), [token], max_tokens=5) for token in (1, 999)]
    good, bad = with_loop(engine, lambda loop: asyncio.gather(*map(loop.generate, requests), return_exceptions=True))
    assert good.token_ids.tolist() == [7, ANSWER]
    assert str(bad) == "token 999 is not in the vocabulary"


@pytest.mark.parametrize("window", [2, 9])
def test_an_error_at_the_entropies_fails_its_own_request_only(window):
    """They come before the turn ends, or with its end if it is shorter than the window."""
    engine = scripted_engine(in_turn([ScriptedReply([7, 7, 7, ANSWER]), ScriptedReply([8, 8, 8, ANSWER])]))
    first, second = (GenerationRequest(str(i), [i], max_tokens=9, entropy_window=window) for i in (0, 1))

    def fail(_entropies):
        raise OSError("no fork")

    bad, good = with_loop(
        engine,
        lambda loop: asyncio.gather(loop.generate(first, fail), loop.generate(second), return_exceptions=True),
    )
    assert (type(bad), str(bad)) == (OSError, "no fork")
    assert good.token_ids.tolist() == [8, 8, 8, ANSWER]
    assert engine.cancelled == (["0"] if window == 2 else [])
