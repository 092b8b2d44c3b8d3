"""Learner and env runners, each in the driver's process or in one of its own; scripted engines."""

import time

import numpy as np
import pytest
import ray

from rllib_arpo import ARPOConfig
from rllib_arpo.weights import weight_sync
from rllib_arpo.weights.snapshot import WeightSyncError
from rllib_arpo.weights.weight_sync import InProcessReload, load_timeout_s
from tests.helpers.configs import small_config
from tests.helpers.weights import learner_weights, set_learner_weights


def engine_weights(algorithm) -> list[dict[str, np.ndarray]]:
    group = algorithm.env_runner_group
    return group.foreach_env_runner(
        lambda runner: runner.engine.weights, local_env_runner=group.num_remote_env_runners() == 0
    )


@pytest.mark.parametrize(
    ("num_env_runners", "num_learners"),
    [(0, 0), pytest.param(2, 1, marks=pytest.mark.slow)],
)
def test_every_engine_gets_the_learners_weights(
    ray_cluster, model_folder, monkeypatch, num_env_runners, num_learners, built
):
    config = small_config(model_folder).env_runners(num_env_runners=num_env_runners, num_cpus_per_env_runner=0.25)
    algorithm = built(config.learners(num_learners=num_learners))
    set_learner_weights(algorithm, 0.5)
    passed = []
    on_first_learner = InProcessReload._on_first_learner

    def spy(self, function):
        passed.append(on_first_learner(self, function))
        return passed[-1]

    monkeypatch.setattr(InProcessReload, "_on_first_learner", spy)
    if num_learners:
        monkeypatch.setattr(ray, "put", lambda value: pytest.fail("a copy through the driver"))
    algorithm._push_weights()
    monkeypatch.undo()
    assert algorithm._weight_version == 1
    if num_learners:
        assert [type(value) for value in passed] == [tuple, ray.ObjectRef]
    engines = engine_weights(algorithm)
    assert len(engines) == max(num_env_runners, 1)
    for weights in engines:
        assert weights.keys() == learner_weights(algorithm).keys()
        assert all((array == 0.5).all() for array in weights.values())


def test_weights_are_sent_once(ray_cluster, model_folder, built):
    algorithm = built(small_config(model_folder))
    sync, group = algorithm._weight_sync, algorithm.env_runner_group
    assert algorithm.config.weight_sync == "in_process_reload"  # Of "auto", without a GPU.
    (kept,), _ = algorithm.get_ctor_args_and_kwargs()
    assert ARPOConfig.from_state(kept).weight_sync == "auto"  # A checkpoint may be restored on another machine.
    learner = algorithm.learner_group._learner
    for parameter in learner.module["default_policy"].parameters():
        parameter.data.fill_(0.5)
    assert sync.push(group) == 0
    assert not any((array == 0.5).all() for array in engine_weights(algorithm)[0].values())
    learner.set_state(learner.get_state())
    assert sync.push(group) == 1
    assert all((array == 0.5).all() for array in engine_weights(algorithm)[0].values())


@pytest.mark.parametrize("num_env_runners", [0, 1])
def test_an_engine_that_does_not_take_them_ends_the_run_with_the_cause(ray_cluster, model_folder, num_env_runners):
    config = small_config(model_folder, weight_names=["w"]).env_runners(num_env_runners=num_env_runners)
    message = rf"^Env runner {num_env_runners} did not get the weights of version 0: Unknown or missing weights: "
    with pytest.raises(WeightSyncError, match=message):
        config.build_algo()


def test_the_limit_follows_from_the_bytes(ray_cluster, model_folder, built, monkeypatch):
    assert (load_timeout_s(0), load_timeout_s(16_000_000_000)) == (540.0, 700.0)
    algorithm = built(small_config(model_folder))
    size = sum(4 * array.size for name, array in learner_weights(algorithm).items() if name != "lm_head.weight")
    assert algorithm.learner_group._learner.engine_bytes == size
    monkeypatch.setattr(weight_sync, "CALL_TIMEOUT_S", 0.0)
    monkeypatch.setattr(weight_sync, "SLOWEST_BYTES_PER_S", 8.0 * size)
    algorithm.env_runner.engine.update_weights = lambda *_arguments: time.sleep(2.0)
    set_learner_weights(algorithm, 0.5)
    with pytest.raises(
        WeightSyncError, match=r"TimeoutError: The engine has not finished load_and_verify within 0\.125 s"
    ):
        algorithm._push_weights()
