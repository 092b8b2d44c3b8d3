"""A run that is given no seed draws one, so that trials differ; it stands in results and checkpoints."""

from __future__ import annotations

from pathlib import Path

import pytest
from ray import tune

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


def test_a_drawn_seed_is_that_of_all_parts_and_survives_a_checkpoint(unseeded, tmp_path):
    algorithm = unseeded.build_algo()
    seed = algorithm.config.seed
    runner = algorithm.env_runner_group.local_env_runner
    try:
        assert isinstance(seed, int)
        assert (runner.config.seed, algorithm.evaluation_config.seed, algorithm.learner_group.config.seed) == (
            seed,
        ) * 3
        assert algorithm.train()["config"]["seed"] == seed
        path = algorithm.save_to_path(str(tmp_path / "checkpoint"))
    finally:
        algorithm.stop()
    assert unseeded.seed is None
    restored = ARPO.from_checkpoint(path)
    assert restored.config.seed == seed
    restored.stop()


def test_a_given_seed_stays(ray_cluster, model_folder):
    algorithm = small_config(model_folder).debugging(seed=0).build_algo()
    assert algorithm.config.seed == 0
    algorithm.stop()


@pytest.mark.slow
def test_trials_of_one_experiment_differ_and_keep_their_seeds(unseeded, tmp_path):
    """The first trial fails once, in iteration 2, and goes on from its checkpoint with its seed."""
    marker = tmp_path / "failed"

    def fail_once(*, algorithm, **_kwargs):
        if algorithm.iteration == 1 and not marker.exists():
            marker.touch()
            raise RuntimeError("once")

    results = tune.Tuner(
        "ARPO",
        param_space=unseeded.callbacks(on_train_result=fail_once).training(lr=tune.grid_search([1e-3, 1e-4])),
        run_config=tune.RunConfig(
            name="two",
            storage_path=str(tmp_path),
            stop={"training_iteration": 2},
            verbose=0,
            failure_config=tune.FailureConfig(max_failures=1),
            checkpoint_config=tune.CheckpointConfig(checkpoint_frequency=1),
        ),
        tune_config=tune.TuneConfig(max_concurrent_trials=1),
    ).fit()
    assert not results.errors
    assert marker.exists()
    folders = [Path(result.path).name for result in results]
    seeds = [list(result.metrics_dataframe["config/seed"]) for result in results]
    assert seeds == [[trial_seed(f"two/{folder}")] * 2 for folder in folders]
    assert seeds[0] != seeds[1]
