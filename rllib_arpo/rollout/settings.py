"""The tree sampler's settings, as one frozen value."""

from __future__ import annotations

from dataclasses import dataclass

from ray.rllib.algorithms.algorithm_config import AlgorithmConfig

from rllib_arpo.core.branching import BranchingParams, children_per_fork
from rllib_arpo.core.entropy_history import NO_HISTORY, EntropyReference
from rllib_arpo.core.reshaping import NO_RESHAPING, Reshaping
from rllib_arpo.core.settings import settings_from
from rllib_arpo.engine.engine import WINDOWS


@dataclass(frozen=True, slots=True)
class RolloutSettings:
    """Settings of adaptive rollout (docs/design.md); the attributes have the names of `ARPOConfig`.

    `temperature` 0 decodes greedily. `max_turn_tokens` None leaves a turn as long as the response may be.
    `entropy_reference` holds the entropies of earlier questions of the run. Only the commands that evaluate a model set
    `reshaping`.
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
    deadline_reward: float | None = None
    on_bad_row: str = "raise"
    entropy_baseline: str = "initial"
    pre_monitoring_sensitivity: float | None = None
    entropy_reference: EntropyReference = NO_HISTORY
    record_entropies: str = WINDOWS
    reshaping: Reshaping = NO_RESHAPING

    @property
    def monitors_entropy(self) -> bool:
        """Whether the entropy of the first root decides how many roots there are."""
        return self.pre_monitoring_sensitivity is not None and self.entropy_reference.after_tool is not None

    @classmethod
    def from_config(
        cls, config: AlgorithmConfig, *, explore: bool, entropy_reference: EntropyReference = NO_HISTORY
    ) -> RolloutSettings:
        """The settings for training (`explore=True`) or for greedy decoding (`explore=False`: one leaf, no forks)."""
        branching = config.branching if explore else "never"
        num_rollouts = config.num_rollouts if explore else 1
        # Without forks, top-ups would start after the first N have ended; start all trajectories at once instead.
        num_initial_rollouts = num_rollouts if branching == "never" else config.num_initial_rollouts
        width = children_per_fork(config.branch_width, num_rollouts, num_initial_rollouts)
        return settings_from(
            cls,
            config,
            num_rollouts=num_rollouts,
            num_initial_rollouts=num_initial_rollouts,
            branching=settings_from(BranchingParams, config, branching=branching, branch_width=width),
            temperature=config.temperature if explore else 0.0,
            seed=config.seed or 0,
            pre_monitoring_sensitivity=config.pre_monitoring_sensitivity if branching != "never" else None,
            entropy_reference=entropy_reference,
            reshaping=NO_RESHAPING,
        )
