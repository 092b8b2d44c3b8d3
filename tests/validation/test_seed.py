"""A run that is given no seed draws one, so that trials differ; it stands in results and checkpoints."""

import pytest

from rllib_arpo import ARPO
from rllib_arpo.rollout.seeds import trial_seed
from tests.helpers.configs import small_config


def test_a_trials_seed_follows_from_its_name():
    assert trial_seed("a1b2c_00000") == 579297045  # Half of the first four bytes of its SHA-256.
    seeds = {trial_seed(f"a1b2c_{i:05}") for i in range(100)}
    assert len(seeds) == 100
    assert all(0 <= seed < 2**31 for seed in seeds)


def test_outside_of_tune_chance_decides():
    assert len({trial_seed(None) for _ in range(8)}) == 8


@pytest.fixture
def unseeded(ray_cluster, model_folder):
    return small_config(model_folder).debugging(seed=None)


def test_a_drawn_seed_is_that_of_all_parts_and_survives_a_checkpoint(unseeded, tmp_path, built):
    algorithm = built(unseeded)
    seed = algorithm.config.seed
    runner = algorithm.env_runner_group.local_env_runner
    assert isinstance(seed, int)
    assert (runner.config.seed, algorithm.evaluation_config.seed, algorithm.learner_group.config.seed) == (seed,) * 3
    assert algorithm.train()["config"]["seed"] == seed
    path = algorithm.save_to_path(str(tmp_path / "checkpoint"))
    assert unseeded.seed is None
    restored = ARPO.from_checkpoint(path)
    assert restored.config.seed == seed
    restored.stop()
