"""Whole configurations: valid ones, required keys, and round trips."""

from __future__ import annotations

import pytest
import ray

from rllib_arpo import (
    AEPOConfig,
    ARPOConfig,
    DAPOConfig,
    GRPOConfig,
    ReinforcePlusPlusConfig,
    TreeGRPOConfig,
)
from tests.helpers.configs import small_config
from tests.validation.sentences import message


def test_the_small_configuration_is_valid(model_folder):
    small_config(model_folder).validate()


@pytest.mark.parametrize("config_class", [GRPOConfig, DAPOConfig, ReinforcePlusPlusConfig, AEPOConfig, TreeGRPOConfig])
def test_the_baselines_are_valid(model_folder, config_class):
    config = small_config(model_folder, config=config_class()).training(questions_per_minibatch=1)
    config.overlong_buffer_tokens = config.overlong_buffer_tokens and 20
    config.validate()


def test_none_where_it_means_off(model_folder):
    config = small_config(model_folder)
    config.update_from_dict({"grad_clip": None, "seed": None, "adam_betas": [0, 0.99], "deadline_reward": None})
    config.log_gradients = False
    config.validate()


def test_unknown_key_of_the_environment(model_folder):
    config = small_config(model_folder).environment(env_config={"max_tool_cals": 3})
    assert "max_tool_cals" in message(config)


def test_round_trip_as_dict(model_folder):
    config = small_config(model_folder)
    copy = ARPOConfig().update_from_dict(config.to_dict())
    copy.validate()
    assert {k: v for k, v in vars(copy).items() if k == "num_rollouts"} == {"num_rollouts": 4}
    assert copy.to_dict()["engine_kwargs"] == config.engine_kwargs


def test_validation_does_not_start_ray(model_folder):
    """Validation starts nothing."""
    if ray.is_initialized():
        ray.shutdown()
    small_config(model_folder).validate()
    assert not ray.is_initialized()


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        (
            {"env_config": {"max_tool_calls": 7}},
            "env_config['max_tool_calls'] contradicts max_tool_calls=3: set max_tool_calls alone.",
        ),
        ({"env": None}, "env is required: call .environment('ToolMath-v0', env_config={...})."),
        (
            {"env": "ToolMaths-v0"},
            "env='ToolMaths-v0' is not registered: import its module, or call ray.tune.register_env.",
        ),
        (
            {"model_name_or_path": None},
            "model_name_or_path is required: call .language_model(model_name_or_path=...).",
        ),
        ({"model_name_or_path": "/no/such/model"}, "model_name_or_path='/no/such/model': no such folder."),
        ({"num_rollout": 8}, "'num_rollout' is not a key of ARPOConfig. Did you mean 'num_rollouts'?"),
    ],
)
def test_one_sentence_names_the_key(model_folder, changes, expected):
    assert message(small_config(model_folder).update_from_dict(changes)) == expected
