"""RLlib's keys: ARPO checks those that it uses and refuses a change of all others, so that it ignores none."""

import numpy as np
import pytest
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.connectors.learner import AddOneTsToEpisodesAndTruncate

from rllib_arpo import ARPOConfig
from rllib_arpo.options.rules import shown
from rllib_arpo.validation.keys import ALLOWED, HARMLESS, HINTS, USED, USED_IN_TRAINING, keyword
from tests.helpers.configs import small_config
from tests.validation.refusals import message

RULES = USED | USED_IN_TRAINING
ALL = set(vars(AlgorithmConfig()))
NAN = float("nan")


def test_the_tables_name_keys_of_rllib_and_each_key_once():
    assert RULES.keys() | HARMLESS | HINTS.keys() | ALLOWED.keys() <= ALL
    assert len(RULES.keys() | HARMLESS | HINTS.keys()) == len(USED) + len(USED_IN_TRAINING) + len(HARMLESS) + len(HINTS)
    assert [keyword(key) for key in ("_learner_class", "callbacks_on_episode_end", "framework_str", "_is_atari")] == [
        "learner_class", "on_episode_end", "framework", "_is_atari"
    ]  # fmt: skip


class Anything:
    """A value that no key has."""


@pytest.mark.parametrize("hinted", [True, False])
def test_every_key_that_is_neither_used_nor_harmless_is_refused(model_folder, hinted):
    refused = ALL - RULES.keys() - HARMLESS
    for key in refused & HINTS.keys() if hinted else refused - HINTS.keys():
        config = small_config(model_folder).env_runners(num_env_runners=1)
        usual = f"ARPO does not use this key of RLlib; leave it at {shown(getattr(config, key))}"
        setattr(config, key, Anything())
        assert message(config) == f"{keyword(key)}=<Anything>: {HINTS.get(key, usual)}."


class OfNewerRLlib(ARPOConfig):
    """Has a key that RLlib does not have today."""

    def __init__(self):
        super().__init__()
        self.lookahead = 1


def test_a_key_that_rllib_adds_is_refused_when_it_changes(model_folder):
    config = small_config(model_folder, config=OfNewerRLlib())
    config.validate()
    config.lookahead = 2
    assert message(config) == "lookahead=2: ARPO does not use this key of RLlib; leave it at 1."


def kept(key: str, *values: object) -> list[object]:
    """Those of the values that keep the key's rule."""
    return [value for value in values if RULES[key].test(value)]


def test_a_learner_connector_is_a_function_of_two_spaces():
    wrong = (AddOneTsToEpisodesAndTruncate(), lambda: None, lambda a, b, c: None)
    right = [AddOneTsToEpisodesAndTruncate, lambda a, b: None, lambda *spaces: None, dict]
    assert kept("_learner_connector", *wrong, *right) == right


def test_a_learning_rate_can_train():
    schedules = [[[0, 0.0], [1000, 1e-5], [2000, 0.0]], ((0, 1e-4), (10, 1e-5))]
    assert kept("lr", 1e-6, *schedules) == [1e-6, *schedules]
    assert kept("lr", 0, NAN, np.float32(1e-4), [0, 1e-4], [[0, 1e-4]], [[0, 0.0], [1000, 0.0]]) == []
    assert kept("lr", [[0, 1e-4], [1000, -1e-5]], [[10, 1e-4], [1000, 1e-5]], [[0, 1e-4], [0, 1e-5]]) == []


def test_a_configuration_that_was_stored_is_valid(model_folder):
    """A checkpoint's is: the specification of its policy comes back as a tuple."""
    config = small_config(model_folder)
    config.validate()
    assert type(config).from_state(config.get_state()).seed == 0
    type(config).from_state(config.get_state()).validate()
