"""Environments of gymnasium as worlds: what the model reads, what a text does, pay, ends and seeds."""

from __future__ import annotations

import gymnasium as gym
import pytest

from rllib_arpo.core.tree import ToolStatus
from rllib_arpo.envs.errors import ContractError
from rllib_arpo.envs.rewards import FinishedPath, Score
from tests.helpers.worlds import trunk_of

MOVES = ["left", "down", "right", "up"]
LAKE = {"id": "FrozenLake-v1", "desc": ["SFH", "FFG"], "is_slippery": False, "read": MOVES, "show": str}


async def said(play, *texts):
    return [(reply.text, reply.reward, reply.done) for reply in [await play.act(text) for text in texts]]


async def score(play):
    return await play.score(FinishedPath(play._question, (), True, None, (), 0))


class Echo(gym.Env):
    """Texts in, texts out; pays for each letter, and ends after two texts."""

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
        return action, self.pay * len(action), *ended, {}

    def close(self):
        self.closed = True


def show(env):
    return f"square {env.s} of {env.desc.size}"


BY_NAME = {"read": "builtins:int", "show": "tests.envs.worlds.test_gym:show"}


@pytest.mark.parametrize(
    ("options", "moves", "opening", "replies", "accuracy"),
    [
        ({}, [" Down\n", "right", "right"], "0", [("3", 0.0, False), ("4", 0.0, False), ("5", 1.0, True)], 1.0),
        (BY_NAME, ["2", "2"], "square 0 of 6", [("square 1 of 6", 0.0, False), ("square 2 of 6", 0.0, True)], 0.0),
    ],
)
async def test_an_environment_by_its_id(options, moves, opening, replies, accuracy):
    play = trunk_of({"gymnasium": {**LAKE, **options}}, seed=3)
    await play.ready()
    found = [play.opening, *await said(play, *moves), await score(play)]
    await play.close()
    assert found == [opening, *replies, Score(0.0, accuracy)]


@pytest.mark.parametrize(
    ("read", "text", "error"),
    [
        (MOVES, "jump", "Write one of these words: left, down, right, up."),
        (int, "4", "'4' is not an action: Discrete(4)."),
        (int, str(10**20), f"'{10**20}' is not an action: Discrete(4)."),
        (int, "up", "invalid literal for int() with base 10: 'up'."),
    ],
)
async def test_a_text_that_is_not_an_action_is_an_error_that_the_model_reads(read, text, error):
    play = trunk_of({"gymnasium": {**LAKE, "read": read}}, seed=0)
    reply = await play.act(text)
    assert (reply.text, reply.status, reply.done) == (error, ToolStatus.ERROR, False)


class Counted(Echo):
    """Takes its row apart; its actions are numbers from 1 on."""

    action_space = gym.spaces.Discrete(2, start=1)

    def reset(self, *, seed=None, options=None):
        super().reset()
        return options["board"].pop(), {}

    def step(self, action):
        return (str(action), *super().step("")[1:])


async def test_names_of_actions_follow_the_space_and_rows_stay_as_they_are():
    row = {"board": ["k", "q"]}
    for _ in range(2):
        play = trunk_of({Counted: {"read": ["up", "down"]}}, seed=1, **row)
        await play.ready()
        assert (play.opening, await said(play, "UP", "down")) == ("q", [("1", 0.0, False), ("2", 0.0, True)])
    with pytest.raises(ContractError, match=r"'read' names 3 actions, and there are Discrete\(2, start=1\)\.$"):
        await trunk_of({Counted: {"read": ["up", "down", "left"]}}, seed=1, **row).ready()


async def test_spaces_of_texts_need_no_functions_and_the_row_resets():
    first, same, other = trunk_of(Echo, seed=1, hard=True), trunk_of(Echo, seed=1, hard=True), trunk_of(Echo, seed=2)
    for play in (first, same, other):
        await play.ready()
    assert first.opening == same.opening and first.opening.endswith(" {'hard': True}")
    assert other.opening != first.opening and other.opening.endswith(" None")
    assert (await first.act("sixsix")).text == f"'sixsix' is not an action: {Echo.action_space}."
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


async def test_spaces_that_are_not_texts_ask_for_the_functions():
    message = r"^env_config\['world'\] needs 'read', since the environment has Discrete\(4\), not Text\.$"
    with pytest.raises(ContractError, match=message):
        await trunk_of({"gymnasium": {"id": "FrozenLake-v1"}}).ready()
