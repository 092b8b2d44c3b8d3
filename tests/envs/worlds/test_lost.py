"""Worlds that are lost: made again with all that was done, or not at all; and forks that fail."""

from __future__ import annotations

import pytest

from rllib_arpo.envs.errors import BrokenToolError
from rllib_arpo.envs.rewards import Score
from rllib_arpo.envs.worlds import WorldLost
from tests.helpers.worlds import Drifting, Faults, Forked, Replayed, texts, trunk_of

KILLED = WorldLost("killed")


def failing(make, **faults):
    return trunk_of({make: {"faults": Faults(faults)}})


@pytest.mark.parametrize(
    ("deaths", "actions", "found"),
    [
        ([None, None, KILLED], ["5", "slow", "0", "1"], ["6", "too slow", "6", "7"]),
        ([None, KILLED, None, KILLED], ["3", "0", "1"], ["4", "The world was lost twice in one action (killed).", "5"]),
    ],
)
async def test_a_lost_world_is_made_again_and_what_was_done_is_repeated(deaths, actions, found, caplog):
    play = failing(Replayed, act=deaths, close=[BrokenToolError("nobody answers")] * 9).fork()
    assert await texts(play, *actions) == found


async def test_a_lost_world_that_cannot_be_repeated_is_broken():
    play = failing(Drifting, act=[None, KILLED]).fork()
    sentence = r"^The world cannot be repeated: turn 1, 0, got 'world \d+' in place of 'world \d+'\.$"
    with pytest.raises(BrokenToolError, match=sentence):
        await texts(play, "0", "0")


async def test_a_score_and_a_fork_of_a_lost_world_are_those_of_another_one():
    root = failing(Forked, fork=[KILLED], score=[KILLED])
    await texts(root, "5")
    child = root.fork()
    found = await texts(child, "1")
    assert [*found, *await texts(root, "2"), await root.score(None)] == ["7", "8", Score(8.0, 1.0)]


async def test_a_lost_world_that_cannot_be_made_again_is_broken(caplog):
    """A close that raises hides that from nobody."""
    gone, odd = BrokenToolError("no server"), KeyError("a bug")
    play = failing(Replayed, act=[KILLED], reset=[None, gone, gone], close=[odd, odd]).fork()
    for _ in range(2):
        with pytest.raises(BrokenToolError, match=r"^no server$"):
            await play.act("1")
    assert caplog.messages == ["The world did not close: KeyError: 'a bug'"] * 2


async def test_a_fork_that_fails_does_not_give_its_own_forks_the_parents_later_state():
    root = failing(Forked, fork=[BrokenToolError("busy")])
    await texts(root, "1")
    placeholder = root.fork(begin=False)
    assert await texts(root, "5") == ["7"]
    assert await texts(placeholder.fork(), "10") == ["12"]
