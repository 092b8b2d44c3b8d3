"""ARPO under Ray Tune, by name, with nothing but `import rllib_arpo` before."""

from __future__ import annotations

import pytest
from mlflow.tracking import MlflowClient
from ray import tune
from ray.air.integrations.mlflow import MLflowLoggerCallback

from tests.helpers.configs import small_config


def test_tuner_with_rays_mlflow_callback(ray_cluster, model_folder, tmp_path):
    store = f"sqlite:///{tmp_path}/mlflow.db"
    config = small_config(model_folder).training(lr=tune.grid_search([1e-4]))
    results = tune.Tuner(
        "ARPO",
        param_space=config,
        run_config=tune.RunConfig(
            storage_path=str(tmp_path),
            stop={"training_iteration": 1},
            verbose=0,
            callbacks=[MLflowLoggerCallback(tracking_uri=store, experiment_name="tuner")],
        ),
    ).fit()
    assert not results.errors
    client = MlflowClient(store)
    [run] = client.search_runs([client.get_experiment_by_name("tuner").experiment_id])
    assert run.data.params["lr"] == "0.0001"
    assert run.data.metrics["env_runners/num_episodes"] == 2


def test_tune_run_by_name_with_one_actor_for_all_trials(ray_cluster, model_folder, tmp_path):
    """Tune hands the second trial's configuration to the actor of the first."""
    results = tune.run(
        "ARPO",
        config=small_config(model_folder).training(lr=tune.grid_search([1e-3, 1e-4])),
        stop={"training_iteration": 1},
        storage_path=str(tmp_path),
        max_concurrent_trials=1,
        reuse_actors=True,
        verbose=0,
    )
    assert [trial.status for trial in results.trials] == ["TERMINATED", "TERMINATED"]
    last = [trial.last_result for trial in results.trials]
    assert [result["config"]["lr"] for result in last] == [1e-3, 1e-4]
    rates = [result["learners"]["default_policy"]["default_optimizer_learning_rate"] for result in last]
    assert rates == pytest.approx([1e-3, 1e-4])
    assert [result["env_runners"]["num_episodes_lifetime"] for result in last] == [2, 2]
    assert len({result["pid"] for result in last}) == 1
