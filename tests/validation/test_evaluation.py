"""The allowed contents of `evaluation_config`, and evaluation without it; `sentences.md` has what is refused."""

from types import SimpleNamespace

import pytest

from rllib_arpo import ARPO
from rllib_arpo.options.option import Reader
from rllib_arpo.validation.keys import READERS, keyword
from tests.helpers.configs import small_config
from tests.validation.refusals import message


def read_by(*readers: Reader) -> set[str]:
    return {key for key, reader in READERS.items() if reader in readers}


def test_evaluation_is_greedy_and_never_forks(model_folder):
    evaluation = small_config(model_folder).get_evaluation_config_object()
    assert (evaluation.explore, evaluation.branching, evaluation.env_config["split"]) == (False, "never", "test")


def test_an_evaluation_of_training_questions_is_told(model_folder, caplog):
    config = small_config(model_folder).evaluation(evaluation_interval=1)
    for own in ({}, {"split": "test"}):
        config.evaluation_config = {"env_config": own}
        setting_up = SimpleNamespace(config=config, evaluation_config=config.get_evaluation_config_object())
        ARPO._warn_of_training_questions(setting_up)
    hint = 'evaluation_config={"env_config": {"split": "test"}} asks others'
    assert caplog.messages == [f"The evaluation asks training's questions; {hint}."]


def test_a_whole_configuration_for_evaluation_is_refused(model_folder):
    """RLlib would accept it as it is: sampling, with forks, and with a different engine than in training."""
    config = small_config(model_folder).evaluation(evaluation_config=small_config(model_folder))
    assert message(config) == (
        "evaluation_config=<ARPOConfig>: must be a dict of the keys that differ in evaluation, such as "
        "ARPOConfig.overrides() makes, or None."
    )


def test_a_key_that_evaluation_does_not_read_or_takes_from_training_may_only_be_repeated(model_folder):
    shared, unread = (read_by(reader) for reader in (Reader.SHARED, Reader.TRAINING))
    assert {"lr", "num_learners", "num_epochs", "kl_coeff", "log_sys_usage", "max_weight_lag"} <= unread
    # With engines of its own as well: one that could not sleep, or take the learner's weights, would end the run late.
    assert {"weight_sync", "sleep_level", "lora"} == shared
    # An `evaluation_config` in itself would have no end.
    keys, config = shared | unread, small_config(model_folder)
    config.evaluation_config = {key: getattr(config, key) for key in keys - {"evaluation_config"}}
    config.validate()
    for key in keys:
        config.evaluation_config = {key: "another"}
        reason = "evaluation takes it from training" if key in shared else "evaluation does not read it"
        assert message(config) == (
            f"evaluation_config: {keyword(key)}='another': {reason}; set it outside evaluation_config."
        )


@pytest.mark.parametrize("key", sorted(read_by(Reader.SAMPLING, Reader.FORKS)))
def test_a_key_that_greedy_decoding_does_not_read_is_refused(model_folder, key):
    config = small_config(model_folder)
    config.evaluation_config = {key: "another"}
    assert message(config) == (
        f"evaluation_config: {key}='another': greedy decoding does not read it; also set explore=True."
    )
    config.evaluation_config["explore"] = True
    without_forks = f"evaluation_config: {key}='another': evaluation does not fork; also set branching."
    assert (message(config) == without_forks) == (key in read_by(Reader.FORKS))
    config.evaluation_config = {"branching": "threshold"} | config.evaluation_config
    assert "; also set " not in message(config)
