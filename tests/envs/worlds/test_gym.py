"""Environments of gymnasium as worlds: what the model reads, what a text does, pay, ends, seeds, copies."""

from __future__ import annotations

import asyncio

import gymnasium as gym
import pytest

from rllib_arpo.core.tree import ToolStatus
from rllib_arpo.envs.errors import ContractError
from rllib_arpo.envs.rewards import FinishedPath, Score
from rllib_arpo.envs.worlds.copies import CopyChecks
from rllib_arpo.envs.worlds.registry import find_world
from tests.helpers.worlds import trunk_of

MOVES = ["left", "down", "right", "up"]
LAKE = {"id": "FrozenLake-v1", "desc": ["SFH", "FFG"], "is_slippery": False, "read": MOVES, "show": str}


async def said(play, *texts):
    return [(reply.text, reply.reward, reply.done) for reply in [await play.say(text) for text in texts]]


async def score(play):
    return await play.score(FinishedPath(play._question, (), True, None, (), 0))


class Echo(gym.Env):
    """Texts in, texts out; pays for each letter, and ends after two texts. Draws a number at each step."""

    observation_space = gym.spaces.Text(100)
    action_space = gym.spaces.Text(5)

    def __init__(self, pay: float = 0.25, ends: str = "terminated"):
        self.pay, self.ends, self.closed = pay, ends, False

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.left = 2
        return f"{self.np_random.integers(10**6)} {options}", {}

    def step(self, action):
        self.left -= 1
        over = self.left == 0
        ended = [over and self.ends == name for name in ("terminated", "truncated")]
        return f"{action} {self.np_random.integers(10**6)}", self.pay * len(action), *ended, {}

    def close(self):
        self.closed = True


def show(env):
    return f"square {env.s} of {env.desc.size}"


async def test_an_environment_by_its_id_is_read_by_names_and_shown_by_its_observation():
    play = trunk_of({"gymnasium": LAKE}, seed=3)
    await play.ready()
    found = [play.opening, *await said(play, " Down\n", "right", "right"), await score(play)]
    await play.close()
    assert found == ["0", ("3", 0.0, False), ("4", 0.0, False), ("5", 1.0, True), Score(0.0, 1.0)]


async def test_show_may_take_the_environment_and_both_may_be_names():
    options = {**LAKE, "read": "builtins:int", "show": "tests.envs.worlds.test_gym:show"}
    play = trunk_of({"gymnasium": options}, seed=3)
    await play.ready()
    found = [play.opening, *await said(play, "2", "2")]
    assert found == ["square 0 of 6", ("square 1 of 6", 0.0, False), ("square 2 of 6", 0.0, True)]


def test_a_text_that_is_not_an_action_is_an_error_that_the_model_reads():
    async def played(read, text):
        play = trunk_of({"gymnasium": {**LAKE, "read": read}}, seed=0)
        reply = await play.say(text)
        assert await said(play.fork(), *["1" if read is int else "down"]) == [("3", 0.0, False)]
        return reply.text, reply.status, reply.done

    wrong = ToolStatus.ERROR, False
    assert asyncio.run(played(MOVES, "jump")) == ("Write one of these words: left, down, right, up.", *wrong)
    assert asyncio.run(played(int, "4")) == ("'4' is not an action: Discrete(4).", *wrong)
    huge = str(10**20)
    assert asyncio.run(played(int, huge)) == (f"{huge!r} is not an action: Discrete(4).", *wrong)
    literal = "invalid literal for int() with base 10: 'up'."
    assert asyncio.run(played(int, "up")) == (literal, *wrong)


async def test_spaces_of_texts_need_no_functions_and_the_row_resets():
    first, same, other = trunk_of(Echo, seed=1, hard=True), trunk_of(Echo, seed=1, hard=True), trunk_of(Echo, seed=2)
    for play in (first, same, other):
        await play.ready()
    assert first.opening == same.opening and first.opening.endswith(" {'hard': True}")
    assert other.opening != first.opening and other.opening.endswith(" None")
    too_long = (await first.say("sixsix")).text
    assert too_long == f"'sixsix' is not an action: {Echo.action_space}."
    assert [reward for _, reward, _ in await said(first, "aa", "bbb")] == [0.5, 0.75]
    assert await score(first) == Score(0.0, 1.0)  # of 1.25


@pytest.mark.parametrize("ends", ["terminated", "truncated"])
async def test_both_ends_of_an_episode_end_the_trajectory(ends):
    play = trunk_of({Echo: {"ends": ends, "pay": -1}}, seed=1)
    found = [done for _, _, done in await said(play, "a", "b")]
    assert await score(play) == Score(0.0, 0.0)
    world = await play.ready()
    await play.close()
    assert [*found, world._env.closed] == [False, True, True]


@pytest.mark.parametrize("forks_by", [None, "replay"])
async def test_a_fork_has_the_random_numbers_of_its_parent_and_goes_apart(forks_by):
    play = trunk_of({Echo: {"forks_by": forks_by}}, seed=1)
    await said(play, "a")
    child, other = play.fork(), play.fork()
    ((parents, _, _),) = await said(play, "b")
    assert await said(child, "b") == [(parents, 0.25, True)]
    ((others, _, _),) = await said(other, "ccc")
    assert (others.split()[1], others.split()[0]) == (parents.split()[1], "ccc")
    assert await score(child) == Score(0.0, 0.5) and await score(other) == Score(0.0, 1.0)
    await CopyChecks().check([child, other])
    assert play.maker.fork_method == (forks_by or "copy")


def test_wrong_options_are_told_before_anything_is_made():
    for world, message in [
        ({"gymnasium": {"id": "FrozenLak-v1"}}, "Environment `FrozenLak` doesn't exist"),
        ({Echo: {"read": 3}}, r"^env_config\['world'\]: 'read' must be a function or its name, not 3\.$"),
        ({Echo: {"show": "tests:nothing"}}, r"^env_config\['world'\]: 'tests:nothing' cannot be imported"),
    ]:
        with pytest.raises(ValueError, match=message):
            find_world(world)


def test_spaces_that_are_not_texts_ask_for_the_functions():
    message = r"^env_config\['world'\] needs 'read', since the environment has Discrete\(4\), not Text\.$"
    with pytest.raises(ContractError, match=message):
        asyncio.run(trunk_of({"gymnasium": {"id": "FrozenLake-v1"}}).ready())
