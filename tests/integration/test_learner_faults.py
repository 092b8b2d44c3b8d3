"""A learner that dies ends the run with the cause, and the last checkpoint goes on as if nothing had been."""

import os
import signal
import time
from pathlib import Path

import numpy as np
import pytest
import ray
from ray import tune

from rllib_arpo import ARPO
from rllib_arpo.learner.learner_group import LearnerDiedError
from tests.helpers.configs import small_config
from tests.helpers.faulty_env import FaultyEnv
from tests.helpers.scripted_env import ANSWER
from tests.helpers.weights import learner_weights


@pytest.fixture(scope="module", autouse=True)
def faulty_env(ray_cluster) -> None:
    tune.register_env("Faulty-v0", FaultyEnv)


def train_and_save(algorithm: ARPO, folder: Path) -> tuple[str, dict[str, np.ndarray]]:
    """Two iterations. Returns the checkpoint of the first, and the weights after the second."""
    algorithm.train()
    path = algorithm.save_to_path(str(folder))
    before = learner_weights(algorithm)
    algorithm.train()
    after = learner_weights(algorithm)
    assert any(not np.array_equal(before[name], after[name]) for name in before)
    return path, after


def die_in_an_update(algorithm: ARPO, dying: int) -> None:
    """The next update ends with the death of learner number `dying`, and in bounded time."""

    def arm(learner) -> None:
        learner._accumulate_gradients = lambda *_: os._exit(1)

    ray.get(algorithm.learner_group._workers[dying].apply.remote(arm))
    begin = time.monotonic()
    with pytest.raises(LearnerDiedError, match=f"Learner {dying} has died and the run ends with it"):
        algorithm.train()
    algorithm.stop()
    assert time.monotonic() - begin < 300


def hang_in_an_update(algorithm: ARPO, hanging: int) -> None:
    """A learner that is stopped ends the run as one that has died, and its process is not left behind."""
    group = algorithm.learner_group
    pid = ray.get(group._workers[hanging].apply.remote(lambda _learner: os.getpid()))
    group.config = group.config.copy(copy_frozen=False).training(learner_timeout_s=10)
    os.kill(pid, signal.SIGSTOP)
    with pytest.raises(
        LearnerDiedError, match=r"has not answered for 10 s \(learner_timeout_s\) and the run ends with"
    ):
        algorithm.train()
    algorithm.stop()
    deadline = time.monotonic() + 60
    while Path(f"/proc/{pid}").exists() and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not Path(f"/proc/{pid}").exists()


def assert_next_iteration_gives(algorithm: ARPO, expected: dict[str, np.ndarray]) -> None:
    algorithm.train()
    for name, value in learner_weights(algorithm).items():
        np.testing.assert_allclose(value, expected[name], rtol=0, atol=1e-9)


def test_a_dead_learner_ends_the_run_and_the_checkpoint_resumes(model_folder, tmp_path):
    """First with replicas, whose checkpoint then is that of a sharded run, which dies and is resumed in turn."""
    config = small_config(model_folder, vocab_size=256, end_token_id=ANSWER, end_probability=0.3)
    # Root "0" is right, the others are wrong, so that every group has a signal.
    config.environment("Faulty-v0", env_config={"rewards": {"0": 1.0}}).evaluation(evaluation_config={"env_config": {}})
    config.learners(num_learners=2, num_cpus_per_learner=0.5).language_model(dtype="float64")
    config.training(learner_timeout_s=None)

    replicas = config.build_algo()
    path, uninterrupted = train_and_save(replicas, tmp_path / "replicas")
    die_in_an_update(replicas, dying=0)

    sharded = config.copy(copy_frozen=False).training(sharding="fsdp2").build_algo()
    sharded.restore_from_path(path)
    assert_next_iteration_gives(sharded, uninterrupted)
    path, uninterrupted = train_and_save(sharded, tmp_path / "sharded")
    die_in_an_update(sharded, dying=1)

    resumed = ARPO.from_checkpoint(path)
    assert resumed.config.sharding == "fsdp2"
    assert_next_iteration_gives(resumed, uninterrupted)
    hang_in_an_update(resumed, hanging=1)
