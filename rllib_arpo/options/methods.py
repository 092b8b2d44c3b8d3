"""The methods of `ARPOConfig` for options: `make generated` writes this file from `tables.py`."""

from typing import Any, Self

from ray.rllib.algorithms.algorithm_config import AlgorithmConfig, NotProvided

from rllib_arpo.options.option import sets
from rllib_arpo.options.tables import METHODS


class OptionMethods(AlgorithmConfig):
    """Sets options; it never validates them, since a value may be a search space of Tune."""

    def _set_provided(self, method: str, values: dict[str, Any]) -> Self:
        for name in METHODS[method].options.keys() & values.keys():
            if values[name] is not NotProvided:
                setattr(self, name, values[name])
        return self

    @sets(METHODS["language_model"])
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
    ) -> Self:
        return self._set_provided("language_model", locals())

    @sets(METHODS["adaptive_rollout"])
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
        branch_depth: int | None = NotProvided,
        consecutive_fork_penalty: float = NotProvided,
        pre_monitoring_sensitivity: float | None = NotProvided,
        budget_allocation: str = NotProvided,
        max_tool_calls: int = NotProvided,
        max_response_tokens: int = NotProvided,
        max_turn_tokens: int | None = NotProvided,
        temperature: float = NotProvided,
        question_deadline_s: float = NotProvided,
        on_bad_row: str = NotProvided,
        max_weight_lag: int = NotProvided,
        deterministic: bool = NotProvided,
    ) -> Self:
        return self._set_provided("adaptive_rollout", locals())

    @sets(METHODS["training"])
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
        prioritized_share: float = NotProvided,
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
    ) -> Self:
        super().training(**kwargs)
        return self._set_provided("training", locals())

    @sets(METHODS["reporting"])
    def reporting(
        self,
        *,
        show_progress: bool = NotProvided,
        record_share: float | None = NotProvided,
        **kwargs: Any,
    ) -> Self:
        super().reporting(**kwargs)
        return self._set_provided("reporting", locals())
