"""The tables of the record: the rows of questions, and the settings with which they were sampled."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from ray.rllib.env.multi_agent_episode import MultiAgentEpisode

from rllib_arpo.envs.protocols.prompts import load_tokenizer
from rllib_arpo.record.rows import QuestionFacts, Row, TreeAdvantages, question_rows
from rllib_arpo.record.schema import EVALUATION, SCHEMA, SETTINGS_KEY, TRAINING, VERSION, VERSION_KEY
from rllib_arpo.record.settings import RecordSettings
from rllib_arpo.rollout.episodes import episode_to_tree
from rllib_arpo.rollout.messages import SampledQuestion


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
    metadata = {VERSION_KEY: str(VERSION), SETTINGS_KEY: json.dumps(stated)}
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
