"""The tables of options hold signatures, defaults, documentation and checks together."""

from __future__ import annotations

import inspect

import pytest
from ray import tune
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig, NotProvided

from rllib_arpo import ARPOConfig
from rllib_arpo.options.tables import ADAPTIVE_ROLLOUT, LANGUAGE_MODEL, OPTIONS, REPORTING, TRAINING
from tests.helpers.configs import small_config
from tests.validation.sentences import message

TABLES = {
    "language_model": LANGUAGE_MODEL,
    "adaptive_rollout": ADAPTIVE_ROLLOUT,
    "training": TRAINING,
    "reporting": REPORTING,
}


@pytest.mark.parametrize("method", TABLES)
def test_a_method_takes_what_its_table_says(method):
    parameters = inspect.signature(getattr(ARPOConfig, method)).parameters.values()
    keywords = [p for p in parameters if p.kind is inspect.Parameter.KEYWORD_ONLY]
    assert [p.name for p in keywords] == list(TABLES[method])
    assert all(p.default is NotProvided for p in keywords)


@pytest.mark.parametrize("method", TABLES)
def test_a_method_sets_what_it_is_given_and_nothing_else(method):
    for name in TABLES[method]:
        config, value = ARPOConfig(), object()
        untouched = dict(vars(config))
        assert getattr(config, method)(**{name: value}) is config
        assert {key: v for key, v in vars(config).items() if v is not untouched[key]} == {name: value}


@pytest.mark.parametrize("method", TABLES)
def test_help_names_every_keyword_with_its_default(method):
    lines = [line.strip() for line in inspect.getdoc(getattr(ARPOConfig, method)).splitlines()]
    for name, option in TABLES[method].items():
        start = f"{name}: " if callable(option.default) else f"{name} ({option.default!r}): "
        assert sum(line.startswith(start) for line in lines) == 1, start


def test_no_name_stands_in_two_tables():
    assert len(OPTIONS) == sum(map(len, TABLES.values()))


def test_defaults_are_a_configurations_own():
    ARPOConfig().engine_kwargs["seed"] = 1
    assert ARPOConfig().engine_kwargs == {}
    assert (ARPOConfig().num_rollouts, ARPOConfig().adam_betas, ARPOConfig().sharding) == (16, (0.9, 0.95), "none")


def test_what_is_no_option_is_rllibs():
    assert set(vars(ARPOConfig())) - set(vars(AlgorithmConfig())) == set(OPTIONS)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"engine_kwargs": 5}, "engine_kwargs=5: must be a dict."),
        ({"num_rollouts": 0}, "num_rollouts=0: must be an integer >= 1."),
        ({"num_rollouts": 2.5}, "num_rollouts=2.5: must be an integer >= 1."),
        ({"branch_width": "broad"}, "branch_width='broad': must be an integer >= 1 or 'wide' or 'planned'."),
        ({"branch_width": 0}, "branch_width=0: must be an integer >= 1 or 'wide' or 'planned'."),
        ({"clip_low": -0.1}, "clip_low=-0.1: must be a finite number >= 0."),
        ({"dual_clip": 1.0}, "dual_clip=1.0: must be a finite number > 1."),
        ({"deadline_reward": float("inf")}, "deadline_reward=inf: must be a finite number."),
        ({"temperature": float("nan")}, "temperature=nan: must be a finite number > 0."),
        ({"branch_base_probability": 1.5}, "branch_base_probability=1.5: must be a number in [0, 1]."),
        ({"adam_betas": (0.9, 1.0)}, "adam_betas=(0.9, 1.0): must be two numbers in [0, 1)."),
        ({"adam_betas": 0.9}, "adam_betas=0.9: must be two numbers in [0, 1)."),
        (
            {"branching": "entropy"},
            "branching='entropy': must be one of 'threshold', 'probability', 'random', 'always', 'never'.",
        ),
        ({"deterministic": 1}, "deterministic=1: must be one of True, False."),
        (
            {"guards": {"gradnorm": 1.0}},
            "guards='gradnorm': must be one of 'engine_logprob_gap', 'ratio_mean', 'entropy', 'grad_norm'.",
        ),
        ({"guards": {"grad_norm": 0}}, "guards['grad_norm']=0: must be a finite number > 0."),
    ],
)
def test_one_sentence_names_the_key(model_folder, changes, expected):
    assert message(small_config(model_folder).update_from_dict(changes)) == expected


def test_setters_take_search_spaces():
    config = ARPOConfig().adaptive_rollout(num_rollouts=tune.grid_search([4, 8]))
    assert config.num_rollouts == {"grid_search": [4, 8]}


def test_no_attribute_shadows_a_method_of_the_configuration():
    own = set(vars(ARPOConfig())) - set(vars(ARPOConfig.__mro__[1]()))
    assert not own & set(dir(ARPOConfig))
    assert not own & {"model", "rollouts"}
