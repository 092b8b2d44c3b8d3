"""The advantages of a batch for the record, by the pieces of the learner's own pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ray.rllib.connectors.connector_v2 import ConnectorV2
from ray.rllib.env.multi_agent_episode import MultiAgentEpisode

from rllib_arpo.core.advantages import hard_attribution, leaf_ranges, soft_attribution
from rllib_arpo.core.columns import LAYOUTS, LEAF_ADVANTAGES, LEAF_WEIGHTS, NODE_OFFSETS, REWARD_STATISTICS
from rllib_arpo.record.rows import TreeAdvantages


def tree_advantages(
    connectors: Sequence[ConnectorV2], episodes: Sequence[MultiAgentEpisode], statistics: Any
) -> list[TreeAdvantages]:
    """The advantages of these questions, which may be a part of the batch.

    Args:
        connectors: those of the learner that end with the advantages (`advantage_connectors`).
        statistics: of the rewards of the whole batch (`QuestionBatch.statistics`).
    """
    columns: dict[str, Any] = {}
    for piece in connectors:
        columns = piece(
            rl_module=None, batch=columns, episodes=list(episodes), shared_data={REWARD_STATISTICS: statistics}
        )
    return [
        TreeAdvantages(
            layout,
            advantages,
            soft_attribution(advantages, weights, *leaf_ranges(layout), offsets),
            hard_attribution(advantages, weights, *leaf_ranges(layout), offsets),
        )
        for layout, advantages, weights, offsets in zip(
            columns[LAYOUTS],
            columns[LEAF_ADVANTAGES],
            columns[LEAF_WEIGHTS],
            columns.get(NODE_OFFSETS, [None] * len(episodes)),
            strict=True,
        )
    ]
