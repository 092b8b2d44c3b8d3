"""The advantage of each trajectory (docs/design.md, section 1, "Group advantage" and "Baselines")."""

from __future__ import annotations

from typing import Any

from ray.rllib.connectors.connector_v2 import ConnectorV2

from rllib_arpo.connectors.columns import LEAF_ADVANTAGES, LEAF_REWARDS, REWARD_SCALE, REWARD_STATISTICS
from rllib_arpo.core.advantages import batch_advantages, batch_reward_scale, group_advantages


class GroupAdvantage(ConnectorV2):
    """Adds LEAF_ADVANTAGES, [L] float64 per question: the rewards against those of the other leaves of the question.

    REWARD_SCALE is 1: every question is divided by a deviation of its own, the batch by none.
    """

    def __init__(self, input_observation_space=None, input_action_space=None, *, normalize_std: bool = True) -> None:
        super().__init__(input_observation_space, input_action_space)
        self.normalize_std = normalize_std

    def __call__(self, *, batch: dict[str, Any], **kwargs) -> dict[str, Any]:
        batch[LEAF_ADVANTAGES] = [group_advantages(rewards, self.normalize_std) for rewards in batch[LEAF_REWARDS]]
        batch[REWARD_SCALE] = 1.0
        return batch


class BatchAdvantage(ConnectorV2):
    """Adds LEAF_ADVANTAGES, [L] float64 per question, the rewards against those of the whole batch, and REWARD_SCALE.

    The baseline of REINFORCE++. A learner sees only its shard: the mean and the standard deviation come from the
    driver, through `shared_data`.
    """

    def __call__(self, *, batch: dict[str, Any], shared_data: dict[str, Any], **kwargs) -> dict[str, Any]:
        statistics = shared_data[REWARD_STATISTICS]
        batch[LEAF_ADVANTAGES] = [
            batch_advantages(rewards, statistics.mean, statistics.std) for rewards in batch[LEAF_REWARDS]
        ]
        batch[REWARD_SCALE] = batch_reward_scale(statistics.std)
        return batch
