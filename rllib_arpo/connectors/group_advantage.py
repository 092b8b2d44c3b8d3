"""The advantage of each trajectory (docs/design.md, "Group advantage" and "Baselines")."""

from __future__ import annotations

from typing import Any

from rllib_arpo.connectors.piece import ConnectorPiece
from rllib_arpo.core.advantages import (
    batch_advantages,
    batch_reward_scale,
    group_advantages,
    leaf_roots,
    tree_advantages,
)
from rllib_arpo.core.columns import (
    LAYOUTS,
    LEAF_ADVANTAGES,
    LEAF_REWARDS,
    REWARD_SCALE,
    REWARD_STATISTICS,
    TREES,
)


class GroupAdvantage(ConnectorPiece):
    """Adds LEAF_ADVANTAGES, [L] float64 per question: the rewards against those of the other leaves of the question.

    REWARD_SCALE is 1: each question is divided by its own deviation; the batch as a whole is not divided.
    """

    normalize_std: bool = True

    def __call__(self, *, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        batch[LEAF_ADVANTAGES] = [group_advantages(rewards, self.normalize_std) for rewards in batch[LEAF_REWARDS]]
        batch[REWARD_SCALE] = 1.0
        return batch


class TreeAdvantage(ConnectorPiece):
    """Adds LEAF_ADVANTAGES, [L] float64 per question: the rewards against those of the leaf's tree and of all trees.

    The advantage of Tree-GRPO. REWARD_SCALE is 1, as with `GroupAdvantage`.
    """

    normalize_std: bool = True

    def __call__(self, *, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        columns = zip(batch[LEAF_REWARDS], batch[TREES], batch[LAYOUTS], strict=True)
        batch[LEAF_ADVANTAGES] = [
            tree_advantages(rewards, leaf_roots(tree, layout), self.normalize_std) for rewards, tree, layout in columns
        ]
        batch[REWARD_SCALE] = 1.0
        return batch


class BatchAdvantage(ConnectorPiece):
    """Adds LEAF_ADVANTAGES, [L] float64 per question, the rewards against those of the whole batch, and REWARD_SCALE.

    The baseline of REINFORCE++. A learner sees only its shard: the mean and the standard deviation come from the
    driver, through `shared_data`.
    """

    def __call__(self, *, batch: dict[str, Any], shared_data: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        statistics = shared_data[REWARD_STATISTICS]
        batch[LEAF_ADVANTAGES] = [
            batch_advantages(rewards, statistics.mean, statistics.std) for rewards in batch[LEAF_REWARDS]
        ]
        batch[REWARD_SCALE] = batch_reward_scale(statistics.std)
        return batch
