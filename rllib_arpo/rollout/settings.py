"""What the tree sampler reads of the config, as one frozen value."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from rllib_arpo.core.branching import BranchingParams

if TYPE_CHECKING:
    from rllib_arpo.arpo_config import ARPOConfig


@dataclass(frozen=True, slots=True)
class RolloutSettings:
    """Settings of adaptive rollout (docs/design.md, section 1); the attributes bear the names of `ARPOConfig`.

    `temperature` 0 decodes greedily. `max_turn_tokens` None leaves a turn as long as the response may be.
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

    @property
    def defers_forks(self) -> bool:
        """Whether a node is decided only when all of the question's live trajectories have passed its turn."""
        return self.deterministic or self.budget_allocation != "first_come"

    @classmethod
    def from_config(cls, config: ARPOConfig, *, explore: bool) -> RolloutSettings:
        """The settings for training (`explore=True`) or for greedy decoding (`explore=False`: one leaf, no forks)."""
        branching = config.branching if explore else "never"
        num_rollouts = config.num_rollouts if explore else 1
        return cls(
            num_rollouts=num_rollouts,
            # Without forks the rest would be topped up after the first N have ended: start all at once instead.
            num_initial_rollouts=num_rollouts if branching == "never" else config.num_initial_rollouts,
            branching=BranchingParams(
                branching=branching,
                branch_width=config.branch_width,
                branch_base_probability=config.branch_base_probability,
                branch_entropy_weight=config.branch_entropy_weight,
                branch_threshold=config.branch_threshold,
                random_fork_probability=config.random_fork_probability,
            ),
            entropy_window=config.entropy_window,
            entropy_estimator=config.entropy_estimator,
            entropy_normalization=config.entropy_normalization,
            temperature=config.temperature if explore else 0.0,
            max_context_tokens=config.max_context_tokens,
            max_response_tokens=config.max_response_tokens,
            max_turn_tokens=config.max_turn_tokens,
            question_deadline_s=config.question_deadline_s,
            seed=config.seed or 0,
            budget_allocation=config.budget_allocation,
            deterministic=config.deterministic,
            deadline_reward=config.deadline_reward,
        )
