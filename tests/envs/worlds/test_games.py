"""Games of TextArena and SkyRL Gym as worlds, with stand-ins for the packages, which tests/integration/test_games.py
takes."""

from __future__ import annotations

import asyncio
import random
import sys
from enum import Enum
from types import ModuleType, SimpleNamespace

import pytest

from rllib_arpo.envs.errors import ContractError
from rllib_arpo.envs.rewards import Score
from rllib_arpo.envs.worlds.copies import CopyChecks
from rllib_arpo.envs.worlds.registry import find_world
from tests.envs.worlds.test_gym import said, score
from tests.helpers.worlds import trunk_of

Kind = Enum("Kind", ["PROMPT", "PLAYER_ACTION", "GAME_BOARD"])


class Game:
    """As a game of TextArena: messages since the last look, a seed for the module `random`, pay at the end."""

    def __init__(self, target: int = 2):
        self.target, self.moves, self.messages, self.rewards = target, 0, [], None

    def reset(self, num_players, seed=None):
        assert num_players == 1
        random.seed(seed)
        self.messages = [(-1, "Play.", Kind.PROMPT), self.tile()]

    def step(self, action):
        self.messages += [(0, action, Kind.PLAYER_ACTION), self.tile()]
        self.moves += action == "[up]"
        if self.moves == self.target:
            self.rewards = {0: 0.5}
        return self.rewards is not None, {}

    def tile(self):
        return (-1, f"A tile appears: {random.randrange(10**6)}", Kind.GAME_BOARD)

    def get_observation(self):
        new, self.messages = self.messages, []
        return 0, new

    def close(self):
        return self.rewards, {}


class Brackets:
    """As the wrappers of TextArena: changes actions, and shows everything again at each look."""

    def __init__(self, env):
        self.env = env

    def __getattr__(self, name):
        return getattr(self.__dict__["env"], name) if "env" in self.__dict__ else object.__getattribute__(self, name)

    def is_wrapped_with(self, wrapper):
        return isinstance(self, wrapper)

    def step(self, action):
        return self.env.step(f"[{action}]")

    def get_observation(self):
        raise AssertionError("the history is not read")


@pytest.fixture
def textarena(monkeypatch):
    registration = ModuleType("textarena.envs.registration")
    registration.ENV_REGISTRY = {"Tiles-v0": Game}
    registration.make = lambda name, **options: Brackets(registration.ENV_REGISTRY[name](**options))
    for name, module in {
        "textarena": SimpleNamespace(Env=Game),
        "textarena.envs": ModuleType("textarena.envs"),
        "textarena.envs.registration": registration,
    }.items():
        monkeypatch.setitem(sys.modules, name, module)


@pytest.mark.parametrize(
    ("named", "move", "way"),
    [
        ({"textarena": {"id": "Tiles-v0", "target": 2}}, "up", "copy"),
        ({"textarena": {"id": "Tiles-v0", "target": 2, "forks_by": "replay"}}, "up", "replay"),
        ({Game: {"target": 2}}, "[up]", "copy"),
    ],
)
async def test_a_game_of_textarena_shows_what_is_new_and_pays_at_its_end(textarena, named, move, way):
    rng = random.Random(7)
    tiles = [f"A tile appears: {rng.randrange(10**6)}" for _ in range(4)]
    first, second, third, last = tiles
    expected = (f"Play.\n{first}", (second, 0.0, False), (third, 0.0, False), (last, 0.5, True))
    play = trunk_of(named, seed=7)
    await play.ready()
    (reply,) = await said(play, move)
    child = play.fork()
    parents = await said(play, "down", move)
    assert await said(child, "down", move) == parents
    await CopyChecks().check([child])
    assert (await score(play), await score(child)) == (Score(0.0, 0.5),) * 2
    assert play.maker.way(await play.ready()) == way
    assert (play.opening, reply, *parents) == expected


class Sums:
    """As an environment of SkyRL Gym: made of a row's columns, and begun with its prompt."""

    def __init__(self, env_config=None, extras=None):
        self.truth, self.turns, self.closed = extras["reward_spec"]["ground_truth"], 0, False

    def init(self, prompt):
        return [*prompt, {"role": "user", "content": "Begin."}] if self.truth != "lost" else [], {}

    def step(self, action):
        self.turns += 1
        done = action == self.truth or self.turns == 2
        seen = [] if done else [{"role": "user", "content": "Wrong."}, {"role": "user", "content": "Again."}]
        return {"observations": seen, "reward": 0.75 * (action == self.truth), "done": done, "metadata": {}}

    def close(self):
        self.closed = True


@pytest.fixture
def skyrl_gym(monkeypatch):
    made = SimpleNamespace(Env=Sums, registry={"sums": Sums}, make=lambda name, **options: Sums(**options))
    monkeypatch.setitem(sys.modules, "skyrl_gym", made)


@pytest.mark.parametrize("named", [{"skyrl_gym": {"id": "sums"}}, Sums])
async def test_an_environment_of_skyrl_gym_gets_the_row_and_the_prompt(skyrl_gym, named):
    play = trunk_of(named, ("user", "1 + 1?"), reward_spec={"ground_truth": "2"})
    await play.ready()
    (wrong,) = await said(play, "3")
    child = play.fork()
    found = [play.opening, wrong, *await said(play, "2"), *await said(child, "4")]
    found += [await score(play), await score(child), play.maker.way(await play.ready())]
    world = await play.ready()
    await play.close()
    found += [world._env.closed]
    assert found == [
        "Begin.", ("Wrong.\n\nAgain.", 0.0, False), ("", 0.75, True), ("", 0.0, True),
        Score(0.0, 0.75), Score(0.0, 0.0), "copy", True,
    ]  # fmt: skip


def test_a_prompt_that_init_changes_is_refused(skyrl_gym):
    play = trunk_of(Sums, ("user", "1 + 1?"), reward_spec={"ground_truth": "lost"})
    with pytest.raises(ContractError, match=r"^row 3: init of .* must keep the prompt, and may add to it\.$"):
        asyncio.run(play.ready())


def test_unknown_games_and_missing_packages_are_told(textarena, skyrl_gym, monkeypatch):
    with pytest.raises(ValueError, match=r"^Unknown game of textarena 'Tile-v0': did you mean 'Tiles-v0'\?$"):
        find_world({"textarena": {"id": "Tile-v0"}})
    with pytest.raises(ValueError, match=r"^Unknown environment of skyrl_gym 'sum': did you mean 'sums'\?$"):
        find_world({"skyrl_gym": {"id": "sum"}})
    monkeypatch.setitem(sys.modules, "textarena", None)
    message = r"^env_config\['world'\] needs textarena \(pip install rllib-arpo\[games\]\): "
    with pytest.raises(ValueError, match=message):
        find_world({"textarena": {"id": "Tiles-v0"}})
