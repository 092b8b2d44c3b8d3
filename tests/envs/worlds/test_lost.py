"""Worlds that are lost and cannot be made again, and forks that fail."""

from __future__ import annotations

import asyncio
import re
from typing import ClassVar

import pytest

from rllib_arpo.envs.errors import BrokenToolError, ContractError
from rllib_arpo.envs.rewards import Score
from rllib_arpo.envs.worlds import Reply, World, WorldLost
from tests.envs.worlds.test_session import Counter, Forked, Replayed
from tests.helpers.worlds import texts, trunk_of


class Paying(Replayed):
    """Pays for each action, is another one each time, and dies of "die"."""

    made = 0

    async def reset(self, question):
        Paying.made += 1
        self.number = Paying.made
        return "begin"

    async def act(self, action):
        if action == "die":
            raise WorldLost("killed")
        return Reply(f"world {self.number}", reward=float(action))


class Elsewhere(Paying):
    """Begins otherwise each time."""

    async def reset(self, question):
        await super().reset(question)
        return f"world {self.number}"


@pytest.mark.parametrize(
    ("make", "actions", "differs", "ends"),
    [
        (Paying, ["0.0", "die"], "turn 1, 0.0,", "it starts anew"),
        (Paying, ["1.0", "die"], "turn 1, 1.0,", "it has paid rewards, and cannot start anew"),
        # The model has read the other beginning.
        (Elsewhere, ["0.0", "die"], "the beginning", "it cannot start anew"),
    ],
)
def test_a_lost_world_that_cannot_be_repeated_does_not_pay_again(make, actions, differs, ends):
    async def played():
        return (await texts(trunk_of(make).fork(), *actions))[1]

    sentence = rf"The world cannot be repeated: {differs} got 'world \d+.*' in place of 'world \d+.*'; {ends}\."
    if "cannot" in ends:
        with pytest.raises(BrokenToolError, match=f"^{sentence}$"):
            asyncio.run(played())
    else:
        assert re.fullmatch(sentence, asyncio.run(played()))


async def test_a_score_and_a_fork_of_a_lost_world_are_those_of_another_one():
    class Brittle(Forked):
        """Its process dies in the first score and the first fork of a run."""

        deaths: ClassVar = {"score", "fork"}

        def dies_in(self, what):
            if what in self.deaths:
                self.deaths.remove(what)
                raise WorldLost("killed")

        async def fork(self):
            self.dies_in("fork")
            return await super().fork()

        async def score(self, path):
            self.dies_in("score")
            return Score.of(float(self.total))

    root = trunk_of(Brittle)
    await texts(root, "5")
    child = root.fork()
    found = await texts(child, "1")
    assert [*found, *await texts(root, "2"), await root.score(None)] == ["7", "8", Score(8.0, 1.0)]


def test_a_close_that_raises_hides_no_error(caplog):
    class Half(Counter):
        async def reset(self, question):
            raise BrokenToolError("the server is full")

        async def close(self):
            self.client.close()

    with pytest.raises(BrokenToolError, match=r"^the server is full$"):
        asyncio.run(trunk_of(Half).ready())
    assert caplog.messages == ["The world did not close: AttributeError: 'Half' object has no attribute 'client'"]


def test_a_world_that_cancels_itself_is_a_bug_and_no_time_limit():
    class Cancelling(Counter):
        async def act(self, action):
            task = asyncio.ensure_future(asyncio.sleep(60))
            task.cancel()
            await task

    with pytest.raises(RuntimeError, match=r"^it waited for something that was cancelled$"):
        asyncio.run(texts(trunk_of(Cancelling), "1"))


class Gone(World):
    """Its server dies at the first action."""

    takes_text, forks_by = True, "replay"
    made = 0

    async def reset(self, question):
        Gone.made += 1
        if Gone.made > 1:
            raise BrokenToolError("no server")
        return "begin"

    async def act(self, action):
        raise WorldLost("killed")


async def test_a_lost_world_that_cannot_be_made_again_is_broken(monkeypatch):
    monkeypatch.setattr(Gone, "made", 0)
    play = trunk_of(Gone).fork()
    for _ in range(2):
        with pytest.raises(BrokenToolError, match=r"^no server$"):
            await play.say("1")


async def test_a_fork_that_fails_does_not_give_its_own_forks_the_parents_later_state():
    class Busy(Forked):
        failures = 1

        async def fork(self):
            if Busy.failures:
                Busy.failures -= 1
                raise BrokenToolError("busy")
            return await super().fork()

    root = trunk_of(Busy)
    await texts(root, "1")
    placeholder = root.fork(begin=False)
    assert await texts(root, "5") == ["7"]
    assert await texts(placeholder.fork(), "10") == ["12"]


async def test_a_fork_that_is_not_a_world_names_the_contract():
    class Forgetful(Counter):
        async def fork(self):
            return None

    with pytest.raises(ContractError, match=r"^The world: fork must return a World, not None\.$"):
        trunk = trunk_of(Forgetful)
        await trunk.ready()
        await trunk.fork().ready()
