"""The tables of the record: the rows of an iteration's or an evaluation's questions, and the settings of the run."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from ray.rllib.env.multi_agent_episode import MultiAgentEpisode

from rllib_arpo.envs.protocols.prompts import load_tokenizer
from rllib_arpo.record.advantages import tree_advantages
from rllib_arpo.record.rows import QuestionFacts, Row, TreeAdvantages, question_rows
from rllib_arpo.record.schema import SCHEMA, SETTINGS_KEY, VERSION, VERSION_KEY
from rllib_arpo.rollout.episodes import episode_to_tree
from rllib_arpo.rollout.messages import SampledQuestion
from rllib_arpo.rollout.settings import RolloutSettings

if TYPE_CHECKING:
    from rllib_arpo.arpo_config import ARPOConfig

#: Settings of the update that a record states, beside those of the rollout; the attributes of `ARPOConfig`.
UPDATE_SETTINGS = (
    "baseline",
    "normalize_std",
    "attribution",
    "leaf_weighting",
    "loss_aggregation",
    "overlong_buffer_tokens",
)


def training_table(
    iteration: int,
    chosen: Sequence[tuple[SampledQuestion, MultiAgentEpisode | None]],
    config: ARPOConfig,
    statistics: Any,
) -> pa.Table:
    """The rows of training questions, each with the episode that the update trains on (None: it is left out)."""
    episodes = [episode for _, episode in chosen if episode is not None]
    advantages = iter(tree_advantages(episodes, config, statistics))
    rows: list[Row] = []
    for question, episode in chosen:
        of_question = None if episode is None else next(advantages)
        rows += _rows(question, episode or question.episode, iteration, config, of_question)
    return _table(rows, settings(config))


def evaluation_table(iteration: int, sampled: Sequence[SampledQuestion], config: ARPOConfig) -> pa.Table:
    """The rows of evaluation questions."""
    own = config if config.in_evaluation else config.get_evaluation_config_object()
    rows = [row for question in sampled for row in _rows(question, question.episode, iteration, config)]
    return _table(rows, settings(own))


def settings(config: ARPOConfig) -> dict[str, Any]:
    """The settings that a record states: of the model, of the rollout as it was sampled, of the update."""
    rollout = dataclasses.asdict(RolloutSettings.from_config(config, explore=config.explore))
    del rollout["entropy_reference"]
    branching = rollout.pop("branching")
    update = {name: getattr(config, name) for name in UPDATE_SETTINGS}
    return {"model_name_or_path": config.model_name_or_path, **rollout, **branching, **update}


def _rows(
    question: SampledQuestion,
    episode: MultiAgentEpisode,
    iteration: int,
    config: ARPOConfig,
    advantages: TreeAdvantages | None = None,
) -> list[Row]:
    facts = QuestionFacts(str(question.ref.purpose), iteration, question.number, question.seconds)
    return question_rows(episode_to_tree(episode), facts, _tokenizer(config.model_name_or_path), advantages)


def _tokenizer(model_name_or_path: str) -> Any:
    """None if the model has none: an environment of token ids needs none."""
    try:
        return load_tokenizer(model_name_or_path)
    except ValueError:
        return None


def _table(rows: list[Row], stated: dict[str, Any]) -> pa.Table:
    metadata = {VERSION_KEY: str(VERSION), SETTINGS_KEY: json.dumps(stated)}
    return pa.Table.from_pylist(rows, schema=SCHEMA.with_metadata(metadata))
