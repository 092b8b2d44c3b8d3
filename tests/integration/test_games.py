"""Games as worlds: two iterations with forks, scripted moves and a real update; `-m packages` for those of packages."""

from __future__ import annotations

import sys
from dataclasses import dataclass

import pytest

from rllib_arpo.envs.question import QA, Question
from rllib_arpo.envs.tasks import Task
from rllib_arpo.envs.worlds.session import Forking
from rllib_arpo.rollout.episodes import episode_to_tree
from tests.helpers.configs import small_config
from tests.helpers.models import byte_tokenizer
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


@pytest.fixture
def ways(monkeypatch) -> set[str]:
    """The ways in which worlds fork."""
    found, way = set(), Forking.way

    def noted(self, world):
        found.add(way(self, world))
        return way(self, world)

    monkeypatch.setattr(Forking, "way", noted)
    return found


def trains_with_forks(model_folder, built, env_config, moves) -> float:
    """Two iterations with forks, unless first moves end a question; the share of trajectories that the world ended."""
    tokenizer = byte_tokenizer()
    replies = [[*tokenizer.encode(move), tokenizer.eos_token_id] for move in moves]
    config = small_config(model_folder, vocab_size=len(tokenizer), replies=replies)
    config.environment("ToolEnv-v0", env_config=env_config)
    config.language_model(max_context_tokens=1024)
    config.adaptive_rollout(branching="always", entropy_window=2, max_tool_calls=6, max_response_tokens=900)
    algorithm = built(config)
    for _ in range(2):
        result = algorithm.train()["env_runners"]
        assert result["forks_refused"] == 0
        trees = [episode_to_tree(sampled.episode) for sampled in algorithm.last_sampled]
        assert 2 in {sum(t.parent is not None for t in tree.trajectories) for tree in trees}
    return result["stop"].get("world_ended", 0.0)


def test_frozen_lake_of_gymnasium_trains_with_forks(ray_cluster, model_folder, built, ways):
    lake = {"id": "FrozenLake-v1", "is_slippery": False, "read": ["left", "down", "right", "up"], "show": str}
    world = {"gymnasium": lake}
    assert trains_with_forks(model_folder, built, {"world": world}, ["right", "down", "up"]) > 0
    assert ways == {"copy"}


@pytest.fixture
def games(monkeypatch) -> None:
    """The packages of the extra "games", behind those that are installed."""
    monkeypatch.setattr(sys, "path", [*sys.path, packages_with("games", "--no-deps", *GAMES)])


@pytest.mark.packages
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("way", ["copy", "replay"])
def test_2048_of_textarena_trains_with_forks(ray_cluster, model_folder, built, games, ways, way):
    world = {"textarena": {"id": "2048-v0", **({} if way == "copy" else {"forks_by": way})}}
    assert trains_with_forks(model_folder, built, {"world": world}, ["up", "left", "[down]"]) < 1
    assert ways == {way}


@pytest.mark.packages
@pytest.mark.timeout(1800)
def test_gsm8k_in_turns_of_skyrl_gym_trains_with_forks(ray_cluster, model_folder, built, games, ways):
    env_config = {"task": OnePlusOne, "world": {"skyrl_gym": {"id": "gsm8k_multi_turn"}}}
    assert trains_with_forks(model_folder, built, env_config, ["#### 3", "1", "#### 2"]) > 0
    assert ways == {"copy"}
