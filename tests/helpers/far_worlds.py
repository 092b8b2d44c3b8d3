"""Worlds for a process of another Python, which may have only its standard library."""

from __future__ import annotations

import gc
import os
import random
import threading
import time


class Adder:
    """Adds up what is said, from the seed on."""

    def __init__(self, step: int = 1):
        self.step, self.total = step, 0

    def reset(self, row):
        print("noise")
        self.total = row["seed"]
        return f"begin at {self.total}"

    def act(self, said):
        if said == "die":
            os._exit(1)
        if said == "hang":
            time.sleep(60)
        if said == "bug":
            raise KeyError("nothing there")
        if said == "nap":
            time.sleep(0.5)
            return str(os.getpid())
        if said == "worlds":
            return str(sum(isinstance(one, Adder) for one in gc.get_objects()))
        if not said.isdecimal():
            raise ValueError("that is no number")
        self.total += self.step * int(said)
        return f"{self.total}", 0.5, self.total > 100

    def score(self, turns):
        return self.total / 10


class Locked(Adder):
    """Cannot be copied; its methods are awaited."""

    def __init__(self):
        super().__init__()
        self.lock = threading.Lock()

    async def reset(self, row):
        return super().reset(row)

    async def act(self, said):
        return super().act(said)


class Streaming(Adder):
    """Cannot be copied once it has acted."""

    def act(self, said):
        self.stream = (one for one in said)
        return super().act(said)


class Dice(Adder):
    """Draws from `random`, and from a `numpy` that it imports when it needs it."""

    def act(self, said):
        import numpy as np

        return f"{random.randrange(10**6)} {np.random.randint(10**6)}"


class Sums:
    """The same by a method, in TRL's manner."""

    def reset(self, seed):
        self.total = seed
        return f"begin at {self.total}"

    def add(self, number: str) -> int:
        if not number.isdecimal():
            raise LookupError("that is no number")
        self.total += int(number)
        return self.total

    def get_reward(self):
        return self.total / 10


class Shop:
    """In TRL's manner: methods of all kinds, some with names that mean something to other kinds of worlds."""

    owner = property(lambda self: 1 / 0)

    def __init__(self, sign: str = "shop"):
        self.sign = sign

    async def reset(self, seed, **row):
        self.basket = []
        return f"{self.sign} {seed}"

    @staticmethod
    def hours() -> tuple:
        return 9, 17, True

    def score(self, item: str) -> str:
        return f"{item}: 7 of 10"

    def close(self, door: str) -> str:
        return f"{door} is closed"

    @classmethod
    def branches(cls):
        return [cls]

    def _hidden(self):
        return "never"

    async def buy(self, item: str, number: int = 1, **rest) -> str:
        """Puts an item into the basket."""
        if item == "air":
            raise LookupError("no air here")
        if item == "nothing":
            raise KeyError
        self.basket += number * [item]
        return f"{len(self.basket)} items"

    async def get_reward(self):
        return len(self.basket) / 2


class Unpaid(Shop):
    def get_reward(self):
        return None


class Walk:
    """In Gymnasium's manner."""

    def reset(self, seed=None):
        self.place = seed
        return f"at {self.place}", {}

    def step(self, action):
        self.place += {"left": -1, "right": 1}[action]
        return f"at {self.place}", 0.25, self.place == 0, False, {}


class Nameless(Shop):
    def sell(self, *items: str) -> str:
        return f"{len(items)} items"
