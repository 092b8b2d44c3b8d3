"""What follows from the declarations of options: methods, defaults, help, who reads them in evaluation."""

import inspect

import pytest
from ray import tune
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig

from rllib_arpo import ARPOConfig
from rllib_arpo.options.tables import METHODS, OPTIONS


@pytest.mark.parametrize("method", METHODS)
def test_a_method_sets_what_it_is_given_and_nothing_else(method):
    for name in METHODS[method].options:
        config, value = ARPOConfig(), object()
        untouched = dict(vars(config))
        assert getattr(config, method)(**{name: value}) is config
        assert {key: v for key, v in vars(config).items() if v is not untouched[key]} == {name: value}


@pytest.mark.parametrize("method", METHODS)
def test_help_names_every_keyword_with_its_default(method):
    lines = [line.strip() for line in inspect.getdoc(getattr(ARPOConfig, method)).splitlines()]
    for name, option in METHODS[method].options.items():
        start = f"{name}: " if callable(option.default) else f"{name} ({option.default!r}): "
        assert sum(line.startswith(start) for line in lines) == 1, start


def test_no_name_stands_in_two_tables():
    assert len(OPTIONS) == sum(len(method.options) for method in METHODS.values())


def test_defaults_are_a_configurations_own():
    ARPOConfig().engine_kwargs["seed"] = 1
    assert ARPOConfig().engine_kwargs == {}
    assert (ARPOConfig().num_rollouts, ARPOConfig().adam_betas, ARPOConfig().sharding) == (16, (0.9, 0.95), "none")


def test_what_is_no_option_is_rllibs():
    assert set(vars(ARPOConfig())) - set(vars(AlgorithmConfig())) == set(OPTIONS)


def test_setters_take_search_spaces():
    config = ARPOConfig().adaptive_rollout(num_rollouts=tune.grid_search([4, 8]))
    assert config.num_rollouts == {"grid_search": [4, 8]}


def test_no_attribute_shadows_a_method_of_the_configuration():
    own = set(vars(ARPOConfig())) - set(vars(ARPOConfig.__mro__[1]()))
    assert not own & set(dir(ARPOConfig))
    assert not own & {"model", "rollouts"}
