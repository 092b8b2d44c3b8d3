"""A learner that dies ends the run with the cause, and the last checkpoint goes on as if nothing had been."""

from __future__ import annotations

import os
import time

import numpy as np
import pytest
import ray
from ray import tune

import rllib_arpo
from rllib_arpo import ARPO
from rllib_arpo.learner.learner_group import LearnerDiedError
from tests.helpers.configs import small_config
from tests.helpers.faulty_env import FaultyEnv
from tests.helpers.scripted_env import ANSWER
from tests.helpers.weights import learner_weights


@pytest.fixture(scope="module", autouse=True)
def cluster():
    if ray.is_initialized():
        ray.shutdown()
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    rllib_arpo.register()
    tune.register_env("Faulty-v0", FaultyEnv)
    yield
    ray.shutdown()


def die_in_the_next_update(algorithm: ARPO, learner: int) -> None:
    def arm(learner) -> None:
        learner._accumulate_gradients = lambda *_: os._exit(1)

    ray.get(algorithm.learner_group._workers[learner].apply.remote(arm))


@pytest.mark.parametrize(("sharding", "dying"), [("none", 0), ("fsdp2", 1)])
def test_a_dead_learner_ends_the_run_and_the_checkpoint_resumes(model_folder, tmp_path, sharding, dying):
    config = small_config(model_folder, vocab_size=256, end_token_id=ANSWER, end_probability=0.3)
    # Root "0" is right, the others are wrong, so that every group has a signal.
    config.environment("Faulty-v0", env_config={"rewards": {"0": 1.0}}).evaluation(evaluation_config={"env_config": {}})
    config.learners(num_learners=2, num_cpus_per_learner=0.5).training(sharding=sharding)
    algorithm = config.build_algo()
    algorithm.train()
    path = algorithm.save_to_path(str(tmp_path / "checkpoint"))
    before = learner_weights(algorithm)
    algorithm.train()
    uninterrupted = learner_weights(algorithm)
    assert any(not np.array_equal(before[name], uninterrupted[name]) for name in before)
    die_in_the_next_update(algorithm, dying)
    begin = time.monotonic()
    with pytest.raises(LearnerDiedError, match=f"Learner {dying} has died and the run ends with it"):
        algorithm.train()
    algorithm.stop()
    assert time.monotonic() - begin < 60

    resumed = ARPO.from_checkpoint(path)
    resumed.train()
    for name, value in learner_weights(resumed).items():
        np.testing.assert_allclose(value, uninterrupted[name], rtol=0, atol=1e-7)
    resumed.stop()
