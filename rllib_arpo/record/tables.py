"""The tables of the record: the rows of questions, and the settings with which they were sampled."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from ray.rllib.connectors.connector_v2 import ConnectorV2
from ray.rllib.env.multi_agent_episode import MultiAgentEpisode

from rllib_arpo.connectors import PipelineSettings, advantage_connectors
from rllib_arpo.connectors.steps import judged_by
from rllib_arpo.core.advantages import hard_attribution, leaf_ranges, soft_attribution
from rllib_arpo.core.columns import LAYOUTS, LEAF_ADVANTAGES, LEAF_WEIGHTS, NODE_OFFSETS, REWARD_STATISTICS
from rllib_arpo.envs.protocols.prompts import load_tokenizer
from rllib_arpo.record.rows import QuestionFacts, Row, TreeAdvantages, question_rows
from rllib_arpo.record.schema import EVALUATION, SCHEMA, SETTINGS_KEY, TRAINING, VERSION, VERSION_KEY
from rllib_arpo.rollout.episodes import episode_to_tree
from rllib_arpo.rollout.messages import SampledQuestion
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
#: Settings of the fork rule that may be names, in whose place the sampler has numbers: a record states these names.
NAMED_SETTINGS = ("branch_width", "branch_threshold", "branch_share")


@dataclass(frozen=True, slots=True)
class RecordSettings:
    """The settings on which the record of a run depends.

    Attributes:
        model: whose tokenizer decodes.
        share: of the training questions that are recorded (`record_share`); None: only questions that end the run are.
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
    settings = {name: getattr(config, name) for name in (*NAMED_SETTINGS, *UPDATE_SETTINGS)}
    return stated(config.model_name_or_path, rollout) | settings


def stated(model: str, rollout: RolloutSettings) -> dict[str, Any]:
    """The settings that a record states of the model, and of the rollout as it was sampled."""
    settings = dataclasses.asdict(rollout)
    del settings["rollout_reference"]
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


def training_table(
    iteration: int,
    chosen: Sequence[tuple[SampledQuestion, MultiAgentEpisode | None]],
    settings: RecordSettings,
    statistics: Any,
    purpose: str = TRAINING,
) -> pa.Table:
    """The rows of training questions, each with the episode that the update trains on (None: it is left out).

    Args:
        statistics: of the rewards of the whole batch (`QuestionBatch.statistics`).
    """
    episodes = [episode for _, episode in chosen if episode is not None]
    advantages = iter(settings.advantages(episodes, statistics))
    tokenizer, rows = _tokenizer(settings.model), []
    for question, episode in chosen:
        of_question = None if episode is None else next(advantages)
        rows += _rows(question, episode or question.episode, purpose, iteration, tokenizer, of_question)
    return record_table(rows, settings.training)


def evaluation_table(iteration: int, sampled: Sequence[SampledQuestion], settings: RecordSettings) -> pa.Table:
    """The rows of the questions of an evaluation."""
    tokenizer = _tokenizer(settings.model)
    rows = [row for each in sampled for row in _rows(each, each.episode, EVALUATION, iteration, tokenizer)]
    return record_table(rows, settings.evaluation)


def record_table(rows: Sequence[Row], stated: Mapping[str, Any]) -> pa.Table:
    """Rows as a table of the record that states these settings."""
    metadata = {VERSION_KEY: str(VERSION), SETTINGS_KEY: json.dumps(stated, default=np.generic.item)}
    return pa.Table.from_pylist(list(rows), schema=SCHEMA.with_metadata(metadata))


def _rows(
    question: SampledQuestion,
    episode: MultiAgentEpisode,
    purpose: str,
    iteration: int,
    tokenizer: Any,
    advantages: TreeAdvantages | None = None,
) -> list[Row]:
    facts = QuestionFacts(purpose, iteration, question.number, question.seconds)
    return question_rows(episode_to_tree(episode), facts, tokenizer, advantages)


def _tokenizer(model_name_or_path: str) -> Any:
    """None if the model has none: an environment of token ids needs none."""
    try:
        return load_tokenizer(model_name_or_path)
    except ValueError:
        return None
