import asyncio
import gc
import weakref

import pytest

from rllib_arpo.envs.support.per_loop import PerLoop, shared_flight


class Client:
    """Refers to its loop, as clients with open connections do."""

    def __init__(self):
        self.loop = asyncio.get_running_loop()


async def twice(clients: PerLoop[Client]) -> list[Client]:
    return [clients.get(), clients.get()]


def test_one_value_for_every_loop_and_none_for_closed_ones():
    clients = PerLoop(Client)
    first, again = asyncio.run(twice(clients))
    assert first is again
    gone = weakref.ref(first)
    del first, again
    second, _ = asyncio.run(twice(clients))
    gc.collect()
    assert gone() is None
    assert second is not None


class Answers:
    """Counts what is asked, and answers after a moment."""

    def __init__(self):
        self.asked = []

    async def of(self, key: str) -> str:
        self.asked.append(key)
        await asyncio.sleep(0.01)
        if key == "bad":
            raise KeyError(key)
        return key.upper()

    def shared(self, key: str):
        return shared_flight(key, lambda: self.of(key))


async def test_all_who_ask_at_once_share_an_answer_and_who_asks_later_gets_a_new_one():
    answers = Answers()
    first = await asyncio.gather(*(answers.shared(key) for key in "aab"))
    assert [*first, await answers.shared("a")] == ["A", "A", "B", "A"]
    assert answers.asked == ["a", "b", "a"]


def test_all_who_wait_get_the_error():
    answers = Answers()

    async def ask():
        return await asyncio.gather(*(answers.shared("bad") for _ in range(3)), return_exceptions=True)

    assert [repr(error) for error in asyncio.run(ask())] == ["KeyError('bad')"] * 3
    assert answers.asked == ["bad"]
    with pytest.raises(KeyError):
        asyncio.run(answers.shared("bad"))


async def test_who_gives_up_stops_nobody():
    answers = Answers()
    first, second = (asyncio.create_task(answers.shared("a")) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    assert await second == "A"
    assert answers.asked == ["a"]
