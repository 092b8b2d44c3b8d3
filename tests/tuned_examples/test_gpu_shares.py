"""Recipes that also run without a GPU divide those that there are."""

from __future__ import annotations

import importlib

import pytest

from rllib_arpo.recipes.gpus import GpuShares, gpu_shares
from rllib_arpo.recipes.run import use_arguments

OWN = GpuShares(learner=1.0, env_runner=1.0, engine_memory=0.9, sleep_level=0)


@pytest.mark.parametrize(
    ("gpus", "learners", "env_runners", "expected"),
    [
        (0, 0, 1, None),
        (1, 0, 1, GpuShares(learner=0.5, env_runner=0.5, engine_memory=0.4, sleep_level=1)),
        (1, 1, 1, GpuShares(learner=0.5, env_runner=0.5, engine_memory=0.4, sleep_level=1)),
        (1, 0, 2, GpuShares(learner=0.5, env_runner=0.25, engine_memory=0.2, sleep_level=1)),
        (1, 0, 0, GpuShares(learner=1.0, env_runner=0.0, engine_memory=0.4, sleep_level=1)),
        (2, 0, 1, OWN),
        (2, 0, 2, GpuShares(learner=0.5, env_runner=0.25, engine_memory=0.2, sleep_level=1)),
        (8, 4, 4, OWN),
        (8, 1, 0, None),
    ],
)
def test_shares(gpus, learners, env_runners, expected):
    assert gpu_shares(gpus, learners, env_runners) == expected
    if expected and expected.sleep_level:
        # All of it is on one GPU, and a fifth of what the engines may have is left for the learner's weights.
        assert expected.learner + env_runners * expected.env_runner <= 1
        assert max(env_runners, 1) * expected.engine_memory == pytest.approx(0.4)


def test_several_learners_do_not_share_a_gpu():
    with pytest.raises(ValueError) as raised:
        gpu_shares(2, 2, 1)
    assert str(raised.value) == (
        "--num-learners 2: with 1 env runners this takes 3 GPUs, and there are 2; one learner can share a GPU."
    )


def placed(name: str, model: str, num_gpus: float, *argv: str) -> tuple:
    """(GPUs that the command line gives to a learner, GPUs of an env runner, engine's arguments, sleep level)."""
    recipe = importlib.import_module(f"tuned_examples.{name}")
    args = recipe.parser.parse_args(list(argv))
    config = recipe.make_config(model, args)
    use_arguments(config, args, num_gpus)
    return config.num_gpus_per_learner, config.num_gpus_per_env_runner, config.engine_kwargs, config.sleep_level


def test_make_train_uses_one_gpu_for_engine_and_learner(model_folder):
    assert placed("trails_smollm2_135m_arpo", model_folder, 1) == (0.5, 0.5, {"gpu_memory_utilization": 0.4}, 1)
    assert placed("trails_smollm2_135m_arpo", model_folder, 2) == (1.0, 1.0, {"gpu_memory_utilization": 0.9}, 0)
    assert placed("trails_small_arpo", model_folder, 1) == (1.0, 0.0, {"gpu_memory_utilization": 0.4}, 1)


def test_without_a_gpu_and_with_a_number_of_the_user_nothing_changes(model_folder):
    assert placed("trails_smollm2_135m_arpo", model_folder, 0) == (0, 0, {}, 0)
    given = ["--num-gpus-per-learner", "1"]
    assert placed("trails_smollm2_135m_arpo", model_folder, 1, *given) == (1.0, 0, {}, 0)


def test_a_shared_gpu_is_valid(model_folder, unknown_cluster):
    recipe = importlib.import_module("tuned_examples.trails_smollm2_135m_arpo")
    args = recipe.parser.parse_args([])
    config = recipe.make_config(model_folder, args)
    use_arguments(config, args, 1)
    config.validate()
