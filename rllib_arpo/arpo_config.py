"""`ARPOConfig`: every setting of ARPO, and what RLlib must know about it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from ray.rllib.algorithms.algorithm_config import AlgorithmConfig, NotProvided
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.utils.annotations import override

from rllib_arpo import validation
from rllib_arpo.options.option import Option, documented_by
from rllib_arpo.options.tables import ADAPTIVE_ROLLOUT, LANGUAGE_MODEL, OPTIONS, REPORTING, TRAINING
from rllib_arpo.rollout.env_runner import ARPOEnvRunner

if TYPE_CHECKING:
    from ray.rllib.algorithms.algorithm import Algorithm
    from ray.rllib.connectors.learner import LearnerConnectorPipeline
    from ray.rllib.core.learner.learner_group import LearnerGroup


class ARPOConfig(AlgorithmConfig):
    """Configuration of `ARPO`.

    .. code-block:: python

        config = (
            ARPOConfig()
            .environment("Catalogue-v0")
            .language_model(model_name_or_path="HuggingFaceTB/SmolLM2-135M-Instruct")
            .adaptive_rollout(num_rollouts=8, num_initial_rollouts=4)
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
            setattr(self, name, option.new_value())
        self._set_rllib_defaults()

    def _set_rllib_defaults(self) -> None:
        """Sets the defaults that differ from RLlib's."""
        self.lr = 1e-6
        self.grad_clip = 1.0
        # RLlib would look for NaN in every gradient, twice, and wait for the GPU each time. The learner refuses a norm
        # that is not finite.
        self.torch_skip_nan_gradients = True
        self.env_runner_cls = ARPOEnvRunner
        # Remote env runners own the engines; a local one beside them would start one more. RLlib makes a local one if
        # there are no remote ones.
        self.create_local_env_runner = False
        self.num_envs_per_env_runner = 16
        self.delay_between_env_runner_restarts_s = 5.0
        self.episodes_to_numpy = False
        self.add_default_connectors_to_learner_pipeline = False
        self.add_default_connectors_to_env_to_module_pipeline = False
        self.add_default_connectors_to_module_to_env_pipeline = False
        # ARPO itself pushes the weights, waits for the engines and verifies them.
        self._dont_auto_sync_env_runner_states = True

    @documented_by(LANGUAGE_MODEL)
    def language_model(
        self,
        *,
        model_name_or_path: str = NotProvided,
        dtype: str = NotProvided,
        max_context_tokens: int = NotProvided,
        engine: str = NotProvided,
        engine_kwargs: dict[str, Any] = NotProvided,
        engine_num_threads: int | None = NotProvided,
        weight_sync: str = NotProvided,
        sleep_level: int = NotProvided,
        lora: dict[str, Any] | None = NotProvided,
    ) -> ARPOConfig:
        """Sets the policy and the engine that samples it."""
        return self._set_provided(LANGUAGE_MODEL, locals())

    @documented_by(ADAPTIVE_ROLLOUT)
    def adaptive_rollout(
        self,
        *,
        num_rollouts: int = NotProvided,
        num_initial_rollouts: int = NotProvided,
        branching: str = NotProvided,
        branch_width: int | str = NotProvided,
        entropy_window: int = NotProvided,
        entropy_estimator: str = NotProvided,
        entropy_normalization: str = NotProvided,
        entropy_baseline: str = NotProvided,
        entropy_baseline_questions: int | None = NotProvided,
        record_entropies: str = NotProvided,
        branch_base_probability: float = NotProvided,
        branch_entropy_weight: float = NotProvided,
        branch_threshold: float | str = NotProvided,
        branch_share: float | None = NotProvided,
        random_fork_probability: float | None = NotProvided,
        consecutive_fork_penalty: float = NotProvided,
        pre_monitoring_sensitivity: float | None = NotProvided,
        budget_allocation: str = NotProvided,
        max_tool_calls: int = NotProvided,
        max_response_tokens: int = NotProvided,
        max_turn_tokens: int | None = NotProvided,
        temperature: float = NotProvided,
        question_deadline_s: float = NotProvided,
        deadline_reward: float | None = NotProvided,
        on_bad_row: str = NotProvided,
        max_weight_lag: int = NotProvided,
        deterministic: bool = NotProvided,
    ) -> ARPOConfig:
        """Sets how a question's tree of trajectories is sampled (paper, section 3.1)."""
        return self._set_provided(ADAPTIVE_ROLLOUT, locals())

    @override(AlgorithmConfig)
    @documented_by(TRAINING)
    def training(
        self,
        *,
        questions_per_batch: int = NotProvided,
        questions_per_minibatch: int = NotProvided,
        max_tokens_per_pass: int = NotProvided,
        attribution: str = NotProvided,
        leaf_weighting: str = NotProvided,
        loss_aggregation: str = NotProvided,
        clip_low: float = NotProvided,
        clip_high: float = NotProvided,
        dual_clip: float | None = NotProvided,
        keep_clipped_gradient: bool = NotProvided,
        entropy_advantage_coeff: float = NotProvided,
        kl_coeff: float = NotProvided,
        kl_in_reward: bool = NotProvided,
        entropy_coeff: float = NotProvided,
        importance_cap: float | None = NotProvided,
        gradient_checkpointing: bool | str = NotProvided,
        tree_attention: str = NotProvided,
        learner_compile: str = NotProvided,
        baseline: str = NotProvided,
        returns: str = NotProvided,
        normalize_std: bool = NotProvided,
        overlong_buffer_tokens: int | None = NotProvided,
        max_resample_rounds: int = NotProvided,
        adam_betas: tuple[float, float] = NotProvided,
        weight_decay: float = NotProvided,
        learner_num_threads: int | None = NotProvided,
        learner_timeout_s: float | None = NotProvided,
        skip_groups_without_signal: bool = NotProvided,
        guards: dict[str, float | None] = NotProvided,
        max_error_share: float = NotProvided,
        max_iterations_without_signal: int | None = NotProvided,
        sharding: str = NotProvided,
        optimizer_offload: bool = NotProvided,
        **kwargs: Any,
    ) -> ARPOConfig:
        """Sets the update (docs/design.md, from "Group advantage" on); RLlib's own keywords go through."""
        super().training(**kwargs)
        return self._set_provided(TRAINING, locals())

    @override(AlgorithmConfig)
    @documented_by(REPORTING)
    def reporting(
        self,
        *,
        progress_bar: str = NotProvided,
        record_share: float | None = NotProvided,
        **kwargs: Any,
    ) -> ARPOConfig:
        """Sets how a run is watched; RLlib's own keywords go through."""
        super().reporting(**kwargs)
        return self._set_provided(REPORTING, locals())

    @override(AlgorithmConfig)
    def evaluation(self, *, evaluation_config: dict[str, Any] | None = NotProvided, **kwargs: Any) -> ARPOConfig:
        """Like RLlib's, but keeps a whole configuration as it is; `validate()` then refuses it."""
        if isinstance(evaluation_config, AlgorithmConfig):
            self.evaluation_config, evaluation_config = evaluation_config, NotProvided
        return super().evaluation(evaluation_config=evaluation_config, **kwargs)

    def _set_provided(self, options: Mapping[str, Option], values: Mapping[str, Any]) -> ARPOConfig:
        for name in options:
            if values[name] is not NotProvided:
                setattr(self, name, values[name])
        return self

    @property
    @override(AlgorithmConfig)
    def is_multi_agent(self) -> bool:
        """True: every trajectory is an agent, although one policy serves them all."""
        return True

    @override(AlgorithmConfig)
    def get_default_rl_module_spec(self) -> RLModuleSpec:
        from rllib_arpo.policy.llm_rl_module import LLMRLModule

        return RLModuleSpec(module_class=LLMRLModule)

    @property
    @override(AlgorithmConfig)
    def _model_config_auto_includes(self) -> dict[str, Any]:
        """The input of `LLMRLModule`; RLlib adds it to the `model_config` of whatever module is built."""
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
        from rllib_arpo.connectors import PipelineSettings, build_learner_pipeline

        return build_learner_pipeline(PipelineSettings.from_config(self), input_observation_space, input_action_space)

    @override(AlgorithmConfig)
    def get_evaluation_config_object(self) -> AlgorithmConfig | None:
        """Evaluation decodes one greedy trajectory per question unless `evaluation_config` says otherwise."""
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
        # This comes first: RLlib's own checks would advise users to set keys that ARPO refuses.
        validation.check_keys(self)
        super().validate()
        validation.validate(self)
