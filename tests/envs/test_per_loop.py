import asyncio
import gc
import weakref

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


async def test_who_gives_up_stops_nobody():
    asked = []

    async def answer() -> str:
        asked.append("a")
        await asyncio.sleep(0.01)
        return "A"

    first, second = (asyncio.create_task(shared_flight("a", answer)) for _ in range(2))
    await asyncio.sleep(0)
    first.cancel()
    assert await second == "A"
    assert asked == ["a"]
