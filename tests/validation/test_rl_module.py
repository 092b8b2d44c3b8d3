"""Modules, model configurations and callback classes of users: those that work, and those that nobody would read."""

from __future__ import annotations

import pytest
from ray.rllib.callbacks.callbacks import RLlibCallback
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModuleSpec
from ray.rllib.core.rl_module.rl_module import RLModule, RLModuleSpec

from rllib_arpo.policy.llm_rl_module import LLMRLModule
from tests.helpers.configs import small_config


class Deep(LLMRLModule):
    """Reads a key of its own."""

    def setup(self):
        super().setup()
        self.depth = self.model_config["depth"]


def test_a_module_of_the_users_own(ray_cluster, model_folder):
    config = small_config(model_folder).rl_module(
        rl_module_spec=RLModuleSpec(module_class=Deep), model_config={"depth": 3}
    )
    algorithm = config.build_algo()
    module = algorithm.get_module()
    assert (type(module), module.depth, module.model_config["dtype"]) == (Deep, 3, "float32")
    algorithm.train()
    algorithm.stop()


@pytest.mark.parametrize(
    ("keywords", "expected"),
    [
        ({"model_config": {"depth": 2}}, "model_config['depth']: LLMRLModule does not read it; name a subclass in "),
        ({"model_config": {"dtype": "float16"}}, "model_config['dtype']: engine and learner share this key; use "),
        ({"model_config": 3}, "model_config=3: must be a dict."),
        ({"rl_module_spec": RLModuleSpec(module_class=RLModule)}, "rl_module_spec: RLModule does not subclass LLMRL"),
        ({"rl_module_spec": MultiRLModuleSpec(rl_module_specs={})}, "rl_module_spec=MultiRLModuleSpec("),
    ],
)
def test_a_module_that_does_not_fit(model_folder, keywords, expected):
    with pytest.raises(ValueError) as raised:
        small_config(model_folder).rl_module(**keywords).validate()
    assert str(raised.value).startswith(expected)


class Waiting(RLlibCallback):
    """Waits for what never comes."""

    def on_episode_step(self, **kwargs):
        """Never called."""


def test_a_callback_class_that_waits_in_vain(model_folder):
    config = small_config(model_folder).callbacks([RLlibCallback, Waiting])
    message = "callbacks_class: Waiting.on_episode_step is never called, since an episode is made when its question has"
    with pytest.raises(ValueError, match=f"^{message}"):
        config.validate()
