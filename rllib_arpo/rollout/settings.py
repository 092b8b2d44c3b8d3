"""The tree sampler's settings, as one frozen value."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, TypeVar

from ray.rllib.algorithms.algorithm_config import AlgorithmConfig

from rllib_arpo.core.branching import (
    AUTO,
    AUTO_SHARE,
    BranchingParams,
    children_per_fork,
    looks_back,
    threshold_of,
)
from rllib_arpo.core.reshaping import NO_RESHAPING, Reshaping
from rllib_arpo.core.rollout_history import NO_HISTORY, RolloutHistory, RolloutReference
from rllib_arpo.engine.engine import WINDOWS

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class RolloutSettings:
    """Settings of adaptive rollout (docs/design.md); the attributes have the names of `ARPOConfig`.

    `branching` has the whole fork rule. `temperature` 0 decodes greedily. With `max_turn_tokens` None only the limits
    of the response limit a turn. Only the commands that evaluate a model set `reshaping`.
    """

    num_rollouts: int
    num_initial_rollouts: int
    branching: BranchingParams
    entropy_window: int
    entropy_estimator: str
    entropy_normalization: str
    temperature: float
    max_context_tokens: int
    max_response_tokens: int
    max_turn_tokens: int | None
    question_deadline_s: float
    seed: int
    budget_allocation: str = "first_come"
    deterministic: bool = False
    on_bad_row: str = "raise"
    entropy_baseline: str = "initial"
    pre_monitoring_sensitivity: float | None = None
    rollout_reference: RolloutReference = NO_HISTORY
    record_entropies: str = WINDOWS
    reshaping: Reshaping = NO_RESHAPING

    @property
    def monitors_entropy(self) -> bool:
        """Whether the entropy of the first root decides how many roots there are."""
        return self.pre_monitoring_sensitivity is not None and self.rollout_reference.after_tool is not None

    @classmethod
    def from_config(
        cls,
        config: AlgorithmConfig,
        *,
        explore: bool,
        rollout_reference: RolloutReference = NO_HISTORY,
    ) -> RolloutSettings:
        """The settings for training (`explore=True`) or for greedy decoding (`explore=False`: one leaf, no forks)."""
        branching = config.branching if explore else "never"
        num_rollouts = config.num_rollouts if explore else 1
        # Without forks, top-ups would start after the first N have ended; start all trajectories at once instead.
        num_initial_rollouts = num_rollouts if branching == "never" else config.num_initial_rollouts
        params = _from_config(
            BranchingParams,
            config,
            branching=branching,
            branch_width=children_per_fork(config.branch_width, num_rollouts, num_initial_rollouts),
            branch_threshold=threshold_of(
                config.branch_threshold,
                rollout_reference.rise,
                config.branch_base_probability,
                config.branch_entropy_weight,
            ),
        )
        return _from_config(
            cls,
            config,
            num_rollouts=num_rollouts,
            num_initial_rollouts=num_initial_rollouts,
            branching=params,
            temperature=config.temperature if explore else 0.0,
            seed=config.seed or 0,
            pre_monitoring_sensitivity=config.pre_monitoring_sensitivity if branching != "never" else None,
            rollout_reference=rollout_reference,
            reshaping=NO_RESHAPING,
        )


def rollout_reference(history: RolloutHistory, config: AlgorithmConfig) -> RolloutReference:
    """The measurements of earlier questions that the configuration needs."""
    share = (config.branch_share or AUTO_SHARE) if config.branch_threshold == AUTO else None
    return history.reference(share, by_depth=looks_back(config.branching))


def _from_config(kind: type[T], config: AlgorithmConfig, **computed: Any) -> T:
    """Makes a dataclass `kind` from the `computed` fields, and the others from the configuration, by their names."""
    names = [f.name for f in fields(kind)]  # type: ignore[arg-type]
    return kind(**{name: computed[name] if name in computed else getattr(config, name) for name in names})
