"""The advantages of a batch for the record, by the pieces of the learner's own pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from ray.rllib.env.multi_agent_episode import MultiAgentEpisode

from rllib_arpo.connectors import PipelineSettings, advantage_connectors
from rllib_arpo.core.advantages import hard_attribution, leaf_ranges, soft_attribution
from rllib_arpo.core.columns import LAYOUTS, LEAF_ADVANTAGES, LEAF_WEIGHTS, REWARD_STATISTICS
from rllib_arpo.record.rows import TreeAdvantages

if TYPE_CHECKING:
    from rllib_arpo.arpo_config import ARPOConfig


def tree_advantages(episodes: Sequence[MultiAgentEpisode], config: ARPOConfig, statistics: Any) -> list[TreeAdvantages]:
    """The advantages of these questions, which may be a part of the batch.

    Args:
        statistics: of the rewards of the whole batch (`QuestionBatch.statistics`).
    """
    columns: dict[str, Any] = {}
    for piece in advantage_connectors(PipelineSettings.from_config(config)):
        columns = piece(
            rl_module=None, batch=columns, episodes=list(episodes), shared_data={REWARD_STATISTICS: statistics}
        )
    return [
        TreeAdvantages(
            layout,
            advantages,
            soft_attribution(advantages, weights, *leaf_ranges(layout)),
            hard_attribution(advantages, weights, *leaf_ranges(layout)),
        )
        for layout, advantages, weights in zip(
            columns[LAYOUTS], columns[LEAF_ADVANTAGES], columns[LEAF_WEIGHTS], strict=True
        )
    ]
