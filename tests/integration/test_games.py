"""Games as worlds: two iterations with forks, scripted moves and a real update; `-m packages` for those of packages."""

import sys
from dataclasses import dataclass

import pytest

from rllib_arpo.envs.question import QA, Question
from rllib_arpo.envs.tasks import Task
from tests.helpers.other_python import packages_with

GAMES = [
    "textarena==0.7.4", "skyrl-gym==0.4.0", "chess==1.11.2", "nltk==3.10.4", "defusedxml==0.7.1", "func-timeout==4.3.5",
    "omegaconf==2.4.0",
]  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class OnePlusOne(Task):
    split: str = "train"
    seed: int = 0
    num_questions = None

    def question(self, number, tools=()):
        row = {"reward_spec": {"ground_truth": "2"}, "extra_info": {"max_turns": 3}}
        return Question(f"sum/{number}", (("user", "1 + 1?"),), (), QA, f"sum {number}", row=row)


LIMITS = {"max_tool_calls": 6, "max_response_tokens": 900}


def test_frozen_lake_of_gymnasium_trains_with_forks(trains):
    lake = {"id": "FrozenLake-v1", "is_slippery": False, "read": ["left", "down", "right", "up"], "show": str}
    ways, result = trains({"world": {"gymnasium": lake}}, ["right", "down", "up"], **LIMITS)
    assert (ways, result["stop"]["world_ended"] > 0) == ({"copy"}, True)


@pytest.fixture
def games(monkeypatch) -> None:
    """The packages of the extra "games", behind those that are installed."""
    monkeypatch.setattr(sys, "path", [*sys.path, packages_with("games", "--no-deps", *GAMES)])


@pytest.mark.packages
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("way", ["copy", "replay"])
def test_2048_of_textarena_trains_with_forks(trains, games, way):
    world = {"textarena": {"id": "2048-v0", **({} if way == "copy" else {"forks_by": way})}}
    ways, result = trains({"world": world}, ["up", "left", "[down]"], **LIMITS)
    assert (ways, result["stop"].get("world_ended", 0.0) < 1) == ({way}, True)


@pytest.mark.packages
@pytest.mark.timeout(1800)
def test_gsm8k_in_turns_of_skyrl_gym_trains_with_forks(trains, games):
    env_config = {"task": OnePlusOne, "world": {"skyrl_gym": {"id": "gsm8k_multi_turn"}}}
    ways, result = trains(env_config, ["#### 3", "1", "#### 2"], **LIMITS)
    assert (ways, result["stop"]["world_ended"] > 0) == ({"copy"}, True)
