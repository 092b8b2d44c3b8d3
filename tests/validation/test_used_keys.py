"""Keys of RLlib that this package reads itself, or that go through its classes: they have an effect."""

import logging

import pytest
from ray.rllib.callbacks.callbacks import RLlibCallback
from ray.rllib.connectors.connector_v2 import ConnectorV2
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.utils.metrics.stats import MeanStats

from rllib_arpo import ARPO, ARPOConfig
from rllib_arpo.learner.arpo_torch_learner import ARPOTorchLearner
from rllib_arpo.policy.llm_rl_module import LLMRLModule
from rllib_arpo.rollout.env_runner import ARPOEnvRunner
from rllib_arpo.rollout.messages import Purpose
from tests.helpers.configs import small_config


def test_tune_is_asked_for_what_the_actors_need(model_folder, unknown_cluster):
    config = small_config(model_folder).resources(placement_strategy="SPREAD", num_cpus_for_main_process=3)
    config.resources(custom_resources_for_main_process={"disk": 2})
    config.env_runners(num_env_runners=2, num_cpus_per_env_runner=2, num_gpus_per_env_runner=0.5)
    config.env_runners(custom_resources_per_env_runner={"tool": 1}).evaluation(evaluation_num_env_runners=1)
    config.learners(num_learners=2, num_cpus_per_learner=4, num_gpus_per_learner=1)
    config.learners(custom_resources_per_learner={"fast": 1})
    request = ARPO.default_resource_request(config)
    assert request.strategy == "SPREAD"
    assert request.bundles == [
        {"CPU": 3.0, "disk": 2.0},
        *[{"CPU": 2.0, "GPU": 0.5, "tool": 1.0}] * 3,
        *[{"CPU": 4.0, "GPU": 1.0, "fast": 1.0}] * 2,
    ]


def test_who_switches_validation_off_gets_none():
    with pytest.raises(ValueError, match=r"^model_name_or_path=None: must be the id or folder of a model\.$"):
        ARPOConfig().validate()
    ARPOConfig().experimental(_validate_config=False).validate()


class OwnARPO(ARPO):
    """An algorithm of a user's own."""


class OwnEnvRunner(ARPOEnvRunner):
    """An env runner of a user's own."""


class OwnLearner(ARPOTorchLearner):
    """A learner of a user's own."""


class OwnModule(LLMRLModule):
    """Reads a key of its own."""

    def setup(self):
        super().setup()
        self.depth = self.model_config["depth"]


class OwnCallback(RLlibCallback):
    """Counts its instances' iterations."""

    def on_train_result(self, *, result, **_kwargs):
        result["of_own_callback"] = True


class OwnMean(MeanStats):
    """A mean of a user's own."""


class OwnPiece(ConnectorV2):
    """Counts the batches it has seen."""

    batches = 0

    def __call__(self, *, batch, **_kwargs):
        OwnPiece.batches += 1
        return batch


#: Callbacks -> how often they are called below. How often answers are handed over depends on time.
CALLED = {
    "algorithm_init": [1], "environment_created": [6], "episode_end": [4], "sample_end": [2, 3, 4],
    "evaluate_start": [1], "evaluate_end": [1], "train_result": [1], "checkpoint_loaded": [1],
}  # fmt: skip


def test_classes_and_callbacks_and_numbers_of_ones_own(ray_cluster, model_folder, tmp_path, built):
    """One iteration with much set, restored from its checkpoint."""
    calls = dict.fromkeys(CALLED, 0)

    def count(name):
        return lambda **_kwargs: calls.__setitem__(name, calls[name] + 1)

    config = small_config(model_folder, config=ARPOConfig(algo_class=OwnARPO))
    config.env_runners(env_runner_cls=OwnEnvRunner, num_envs_per_env_runner=3)
    config.learners(learner_connector=lambda *_spaces: OwnPiece()).training(learner_class=OwnLearner)
    config.rl_module(rl_module_spec=RLModuleSpec(module_class=OwnModule), model_config={"depth": 3})
    config.callbacks(OwnCallback, **{f"on_{name}": count(name) for name in CALLED})
    config.evaluation(evaluation_interval=1, evaluation_duration=2)
    # RLlib's own defaults are to log warnings and the system's usage.
    config.debugging(log_level="CRITICAL", log_sys_usage=False)
    config.stats_cls_lookup = {**config.stats_cls_lookup, "mean": OwnMean}
    algorithm = built(config)
    assert logging.getLogger("ray.rllib").level == logging.CRITICAL
    result = algorithm.train()
    algorithm.restore(algorithm.save(str(tmp_path)))
    assert {name: calls[name] in CALLED[name] for name in CALLED} == dict.fromkeys(CALLED, True)
    runner, module = algorithm.env_runner, algorithm.get_module()
    assert (type(algorithm), type(runner)) == (OwnARPO, OwnEnvRunner)
    assert type(algorithm.learner_group._learner) is OwnLearner
    assert (type(module), module.depth, module.model_config["dtype"]) == (OwnModule, 3, "float32")
    assert algorithm.metrics.stats_cls_lookup["mean"] is OwnMean
    assert result["of_own_callback"]
    assert OwnPiece.batches == 1
    assert len(runner._envs[Purpose.TRAINING]) == 3
    assert result["evaluation"]["env_runners"]["num_episodes"] == 2
    assert "perf" not in result
