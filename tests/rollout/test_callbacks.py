"""Callbacks on an env runner may log under any name but those of ARPO's own metrics."""

from types import SimpleNamespace

import pytest
from ray.rllib.utils.metrics.metrics_logger import MetricsLogger

from rllib_arpo.envs.errors import ContractError
from rllib_arpo.rollout.callbacks import RunnerCallbacks
from rllib_arpo.rollout.episodes import TreeEpisode
from rllib_arpo.rollout.messages import Purpose, QuestionRef, SampledQuestion
from rllib_arpo.rollout.metric_table import OWN_NAMES
from tests.helpers.trees import make_tree


def on_sample_end(callback, purpose: Purpose) -> RunnerCallbacks:
    config = SimpleNamespace(callbacks_on_sample_end=callback)
    callbacks = RunnerCallbacks(
        SimpleNamespace(_callbacks=[], config=config, metrics=MetricsLogger()), Purpose.TRAINING
    )
    callbacks.sampled([SampledQuestion(QuestionRef(0, purpose), TreeEpisode(make_tree([1], [])))])
    return callbacks


@pytest.mark.parametrize("key", [*((name,) for name in sorted(OWN_NAMES)), ("entropy", "mine"), "stop/mine"])
@pytest.mark.parametrize("purpose", Purpose)
def test_a_name_of_arpos_is_refused(purpose, key):
    def log(metrics_logger, **_):
        metrics_logger.log_value(key, 100.0)

    name = key.split("/")[0] if isinstance(key, str) else key[0]
    sentence = f"^A callback, on_sample_end, logs under '{name}', a name of ARPO's own metrics: choose another name.$"
    with pytest.raises(ContractError, match=sentence):
        on_sample_end(log, purpose)


def test_other_names_and_groups_are_kept():
    def log(metrics_logger, **_):
        metrics_logger.log_value(("mine", "entropy"), 1.0, window=1)

    metrics = on_sample_end(log, Purpose.EVALUATION).take_metrics({Purpose.EVALUATION})
    assert metrics[Purpose.EVALUATION]["mine"]["entropy"].peek() == 1.0
