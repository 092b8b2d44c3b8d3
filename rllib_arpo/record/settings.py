"""The settings of a record: what is recorded of a run, what its files state of it, and its advantages."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from ray.rllib.connectors.connector_v2 import ConnectorV2
from ray.rllib.env.multi_agent_episode import MultiAgentEpisode

from rllib_arpo.connectors import PipelineSettings, advantage_connectors
from rllib_arpo.connectors.steps import judged_by
from rllib_arpo.core.advantages import hard_attribution, leaf_ranges, soft_attribution
from rllib_arpo.core.columns import LAYOUTS, LEAF_ADVANTAGES, LEAF_WEIGHTS, NODE_OFFSETS, REWARD_STATISTICS
from rllib_arpo.record.rows import TreeAdvantages
from rllib_arpo.rollout.settings import RolloutSettings

if TYPE_CHECKING:
    from rllib_arpo.arpo_config import ARPOConfig

#: Settings of the update that a record states, beside those of the rollout; the attributes of `ARPOConfig`.
UPDATE_SETTINGS = (
    "baseline",
    "returns",
    "normalize_std",
    "attribution",
    "leaf_weighting",
    "loss_aggregation",
    "overlong_buffer_tokens",
)
#: Settings of the rollout whose numbers follow earlier questions: a record states them as the user gave them.
FOLLOWS_EARLIER_QUESTIONS = ("branch_width", "branch_threshold", "branch_share", "rollout_budget")


@dataclass(frozen=True, slots=True)
class RecordSettings:
    """The settings on which the record of a run depends.

    Attributes:
        model: whose tokenizer decodes.
        share: of the training questions that are recorded (`record_share`); None: nothing is recorded.
        training, evaluation: the settings that the files of each purpose state.
        advantages: (episodes, statistics of the rewards of the whole batch) -> the advantages of each.
    """

    model: str
    share: float | None
    training: dict[str, Any]
    evaluation: dict[str, Any]
    advantages: Callable[[Sequence[MultiAgentEpisode], Any], list[TreeAdvantages]]

    @classmethod
    def from_config(cls, config: ARPOConfig) -> RecordSettings:
        held_out = config if config.in_evaluation else config.get_evaluation_config_object()
        return cls(
            model=config.model_name_or_path,
            share=config.record_share,
            training=_stated(config),
            evaluation=_stated(held_out),
            advantages=partial(_tree_advantages, advantage_connectors(PipelineSettings.from_config(config))),
        )


def _stated(config: ARPOConfig) -> dict[str, Any]:
    rollout = RolloutSettings.from_config(config, explore=config.explore)
    settings = {name: getattr(config, name) for name in (*FOLLOWS_EARLIER_QUESTIONS, *UPDATE_SETTINGS)}
    return stated(config.model_name_or_path, rollout) | settings


def stated(model: str, rollout: RolloutSettings) -> dict[str, Any]:
    """The settings that a record states of the model, and of the rollout as it was sampled."""
    settings = dataclasses.asdict(rollout)
    del settings["rollout_reference"], settings["budget"]
    branching = settings.pop("branching")
    return {"model_name_or_path": model, **settings, **branching}


def _tree_advantages(
    connectors: Sequence[ConnectorV2], episodes: Sequence[MultiAgentEpisode], statistics: Any
) -> list[TreeAdvantages]:
    """The advantages of these questions, which may be a part of the batch, by the connectors of the learner.

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
            leaves,
            soft_attribution(advantages, weights, *leaf_ranges(layout), offsets),
            hard_attribution(advantages, weights, *leaf_ranges(layout), offsets),
        )
        for layout, leaves, advantages, weights, offsets in zip(
            columns[LAYOUTS],
            columns[LEAF_ADVANTAGES],
            judged_by(columns),
            columns[LEAF_WEIGHTS],
            columns.get(NODE_OFFSETS, [None] * len(episodes)),
            strict=True,
        )
    ]
