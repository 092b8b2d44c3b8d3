"""Engines that share a GPU with the learner sleep during the update: seen with the scripted engine, which counts."""

import numpy as np
import pytest

from rllib_arpo.engine.engine import NO_WEIGHTS
from rllib_arpo.rollout.messages import QuestionRef, SamplingConditions
from tests.helpers.configs import small_config
from tests.helpers.weights import learner_weights


def record(algorithm) -> list[str]:
    """What happens to the engine and the learner from now on, in order."""
    engine, happened = algorithm.env_runner.engine, []
    for owner, name in ((engine, "sleep"), (engine, "wake_up"), (engine, "update_weights"), (algorithm, "_update")):
        method = getattr(owner, name)

        def recording(*args, name=name, method=method, **kwargs):
            happened.append(f"{name}({engine.asleep})")
            return method(*args, **kwargs)

        setattr(owner, name, recording)
    return happened


@pytest.mark.parametrize("level", [0, 1, 2])
def test_engines_sleep_during_the_update_and_wake_for_its_weights(built, ray_cluster, model_folder, level):
    algorithm = built(small_config(model_folder).language_model(sleep_level=level))
    engine, happened = algorithm.env_runner.engine, record(algorithm)
    algorithm.train()
    algorithm.train()
    asleep = level > 0
    one = [f"_update({asleep})", f"wake_up({asleep})", "update_weights(False)"]
    assert happened == (["sleep(False)"] * asleep + one) * 2
    assert engine.sleeps == [level] * asleep * 2
    assert (engine.asleep, engine.weight_version) == (False, algorithm._weight_version)
    assert engine.weights.keys() == learner_weights(algorithm).keys()


@pytest.mark.parametrize("level", [1, 2])
def test_an_engine_wakes_although_the_learners_weights_are_the_same(built, ray_cluster, model_folder, level):
    """As after an update that has failed."""
    algorithm = built(small_config(model_folder).language_model(sleep_level=level))
    engine, name = algorithm.env_runner.engine, "model.norm.weight"
    algorithm._dispatcher.sleep(level)
    assert (engine.asleep, engine.weight_version, engine.weights == {}) == (True, NO_WEIGHTS, level == 2)
    with pytest.raises(RuntimeError, match=r"^Env runner 0 has weights -2, not 0\.$"):
        algorithm.env_runner.sample_questions([QuestionRef(0)], SamplingConditions(weight_version=0))
    algorithm._push_weights()
    assert (engine.asleep, engine.weight_version) == (False, 0)
    np.testing.assert_array_equal(engine.weights[name], learner_weights(algorithm)[name])
