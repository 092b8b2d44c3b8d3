"""`ARPOConfig` holds every setting of ARPO, and connects ARPO's classes with RLlib."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, Any

from ray.rllib.algorithms.algorithm_config import AlgorithmConfig, NotProvided
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.utils.annotations import override

from rllib_arpo import validation
from rllib_arpo.options.methods import OptionMethods
from rllib_arpo.options.paths import KEYS_WITH_PATHS, with_absolute_paths
from rllib_arpo.options.tables import OPTIONS
from rllib_arpo.rollout.env_runner import ARPOEnvRunner

if TYPE_CHECKING:
    from ray.rllib.algorithms.algorithm import Algorithm
    from ray.rllib.connectors.learner import LearnerConnectorPipeline
    from ray.rllib.core.learner.learner_group import LearnerGroup


class ARPOConfig(OptionMethods):
    """Configuration of `ARPO`.

    .. code-block:: python

        config = (
            ARPOConfig()
            .environment("ToolMath-v0")
            .language_model(model_name_or_path="HuggingFaceTB/SmolLM2-135M-Instruct")
            .adaptive_rollout(num_rollouts=16, max_tool_calls=6)
            .training(lr=3e-5, questions_per_batch=6, questions_per_minibatch=6)
            .env_runners(num_env_runners=1)
        )
        algo = config.build_algo()

    Setters never validate, since a value may be a `tune.grid_search`; `validate()` checks everything before any actor
    starts. Every keyword becomes an attribute of the same name.
    """

    def __init__(self, algo_class: type[Algorithm] | None = None):
        if algo_class is None:
            from rllib_arpo.arpo import ARPO as algo_class
        super().__init__(algo_class=algo_class)
        for name, option in OPTIONS.items():
            setattr(self, name, copy.deepcopy(option.default))
        self._set_rllib_defaults()

    @override(AlgorithmConfig)
    def __setattr__(self, key: str, value: Any) -> None:
        if key in KEYS_WITH_PATHS:
            value = with_absolute_paths(value, key)
        super().__setattr__(key, value)

    def _set_rllib_defaults(self) -> None:
        """Sets the defaults that differ from RLlib's."""
        self.lr = 1e-6
        self.grad_clip = 1.0
        # RLlib would search every gradient for NaN, twice, and wait for the GPU each time. The learner refuses a norm
        # that is not finite.
        self.torch_skip_nan_gradients = True
        self.env_runner_cls = ARPOEnvRunner
        # A local env runner beside remote ones would start one more engine. Without remote ones RLlib makes it anyway.
        self.create_local_env_runner = False
        self.num_envs_per_env_runner = 16
        self.delay_between_env_runner_restarts_s = 5.0
        self.episodes_to_numpy = False
        self.add_default_connectors_to_learner_pipeline = False
        self.add_default_connectors_to_env_to_module_pipeline = False
        self.add_default_connectors_to_module_to_env_pipeline = False
        # ARPO pushes the weights by itself, waits for the engines and verifies them.
        self._dont_auto_sync_env_runner_states = True

    @override(AlgorithmConfig)
    def environment(self, env: Any = NotProvided, *, env_config: Any = NotProvided, **kwargs: Any) -> ARPOConfig:
        """Like RLlib's; makes the paths in `env_config` absolute."""
        return super().environment(env, env_config=with_absolute_paths(env_config), **kwargs)

    @override(AlgorithmConfig)
    def evaluation(self, *, evaluation_config: dict[str, Any] | None = NotProvided, **kwargs: Any) -> ARPOConfig:
        """Like RLlib's, but a whole configuration stays as it is, and `validate()` refuses it."""
        if isinstance(evaluation_config, AlgorithmConfig):
            self.evaluation_config, evaluation_config = evaluation_config, NotProvided
        return super().evaluation(evaluation_config=evaluation_config, **kwargs)

    @property
    @override(AlgorithmConfig)
    def is_multi_agent(self) -> bool:
        """True, because every trajectory is an agent; one policy serves all of them."""
        return True

    @override(AlgorithmConfig)
    def get_default_rl_module_spec(self) -> RLModuleSpec:
        from rllib_arpo.policy.llm_rl_module import LLMRLModule

        return RLModuleSpec(module_class=LLMRLModule)

    @property
    @override(AlgorithmConfig)
    def _model_config_auto_includes(self) -> dict[str, Any]:
        """The input of `LLMRLModule`, which RLlib adds to the `model_config` of every module."""
        names = ("model_name_or_path", "dtype", "temperature", "gradient_checkpointing", "tree_attention", "lora")
        return {name: getattr(self, name) for name in names}

    @override(AlgorithmConfig)
    def get_default_learner_class(self) -> type:
        from rllib_arpo.learner.arpo_torch_learner import ARPOTorchLearner

        return ARPOTorchLearner

    @override(AlgorithmConfig)
    def build_learner_group(
        self, *, env: Any = None, spaces: Any = None, rl_module_spec: Any = None, placement_group: Any = None
    ) -> LearnerGroup:
        from rllib_arpo.learner.learner_group import ARPOLearnerGroup

        spec = rl_module_spec or self.get_multi_rl_module_spec(env=env, spaces=spaces)
        return ARPOLearnerGroup(config=self.copy(), module_spec=spec, placement_group=placement_group)

    @override(AlgorithmConfig)
    def build_learner_connector(
        self, input_observation_space: Any, input_action_space: Any, device: Any = None
    ) -> LearnerConnectorPipeline:
        from rllib_arpo.connectors import build_learner_pipeline

        return build_learner_pipeline(self, input_observation_space, input_action_space)

    @override(AlgorithmConfig)
    def get_evaluation_config_object(self) -> AlgorithmConfig | None:
        """Evaluation decodes one trajectory per question greedily, unless `evaluation_config` changes that."""
        if not self.in_evaluation and not isinstance(self.evaluation_config, AlgorithmConfig):
            user = self.evaluation_config or {}
            defaults = {"explore": False, "branching": "never", "create_local_env_runner": False}
            config = self.copy(copy_frozen=False)
            config.evaluation_config = {**defaults, **user}
            return AlgorithmConfig.get_evaluation_config_object(config)
        return super().get_evaluation_config_object()

    @override(AlgorithmConfig)
    def validate(self) -> None:
        """Checks the whole configuration.

        Raises:
            ValueError: one sentence that names the key.
        """
        if not self._validate_config:
            return
        # This comes first, since RLlib's own checks would advise users to set keys that ARPO refuses.
        validation.check_keys(self)
        super().validate()
        validation.validate(self)
