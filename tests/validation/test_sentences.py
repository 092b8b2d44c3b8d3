"""What a configuration is refused for, and with which sentence."""

import pytest

from rllib_arpo.options.rules import shown
from rllib_arpo.validation.keys import keyword
from tests.helpers.models import tiny_model
from tests.validation.refusals import FILE, RULES, VALUES, default_config, message, whole_file


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> str:
    return tiny_model(tmp_path_factory.mktemp("model"), max_position_embeddings=4096)


def test_the_sentences_are_those_of_the_file(model_folder, model):
    """After a change: `make generated`, and read what users will read."""
    assert whole_file(model_folder, model) == FILE.read_text()


def test_the_defaults_are_valid(model):
    default_config(model).validate()


@pytest.mark.parametrize("key", RULES)
def test_a_value_that_breaks_its_rule_is_refused(model, key):
    rule, config = RULES[key], default_config(model)
    refused = next(value for value in VALUES if not rule.test(value))
    setattr(config, key, refused)
    assert message(config) == f"{keyword(key)}={shown(refused)}: must be {rule.in_words()}."
