"""Texts, numbers, and values for each loop."""

import asyncio
import gc
import math
import weakref
from decimal import Decimal
from fractions import Fraction

import numpy as np
import pytest
import torch

from rllib_arpo.envs.errors import ContractError, finite
from rllib_arpo.envs.support.per_loop import PerLoop, shared_flight
from rllib_arpo.envs.support.texts import valid_unicode


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ""),
        ("\ufeffKäse \U0001f600", "\ufeffKäse \U0001f600"),
        ("\ud83d\ude00", "\U0001f600"),
        ("a\ud83d", "a\ufffd"),
        ("\ude00b", "\ufffdb"),
        ("\ud83d\ud83d\ude00", "\ufffd\U0001f600"),
    ],
)
def test_surrogates_that_stand_alone_are_replaced(text, expected):
    assert valid_unicode(text) == expected


NUMBERS = [np.float16(0.5), np.float32(0.5), np.int64(1), np.bool_(True), np.array(0.5), torch.tensor(0.5),
           torch.tensor(0.5, dtype=torch.bfloat16, requires_grad=True), Fraction(1, 2), True, 1]  # fmt: skip
OTHERS = [None, "0.5", Decimal("0.5"), 1j, [0.5], np.array([0.5]), torch.tensor([0.5]), -math.inf, 10**400]


def test_any_real_number_is_a_reward_and_nothing_else():
    for reward in NUMBERS:
        assert finite(reward, "It") == float(getattr(reward, "item", lambda reward=reward: reward)())
        assert type(finite(reward, "It")) is float
    for reward in OTHERS:
        with pytest.raises(ContractError, match=r"^It must be a finite number, not .{1,80}\.$"):
            finite(reward, "It")


class Client:
    """Refers to its loop, as clients with open connections do."""

    def __init__(self):
        self.loop = asyncio.get_running_loop()


def test_one_value_for_every_loop_and_none_for_closed_ones():
    async def twice() -> list[Client]:
        return [clients.get(), clients.get()]

    clients = PerLoop(Client)
    first, again = asyncio.run(twice())
    assert first is again
    gone = weakref.ref(first)
    del first, again
    second, _ = asyncio.run(twice())
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
