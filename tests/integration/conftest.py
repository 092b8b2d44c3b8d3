"""The policy that several of these tests train: a scripted policy with a signal in every group."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from ray import tune

from rllib_arpo import ARPO, ARPOConfig
from tests.helpers.configs import small_config
from tests.helpers.faulty_env import FaultyEnv
from tests.helpers.scripted_env import ANSWER


@pytest.fixture
def scripted(ray_cluster, model_folder):
    """A configuration on `FaultyEnv`: root "0" is right, the others are wrong, so that every group has a signal."""
    tune.register_env("Faulty-v0", FaultyEnv)
    config = small_config(model_folder, vocab_size=256, end_token_id=ANSWER, end_probability=0.3)
    config.environment("Faulty-v0", env_config={"rewards": {"0": 1.0}})
    return config.evaluation(evaluation_config={"env_config": {}})


@pytest.fixture
def built() -> Iterator[Callable[[ARPOConfig], ARPO]]:
    """`built(config)` -> its algorithm, which is stopped when the test has ended."""
    algorithms = []

    def build(config: ARPOConfig) -> ARPO:
        algorithms.append(config.build_algo())
        return algorithms[-1]

    yield build
    for algorithm in algorithms:
        algorithm.stop()
