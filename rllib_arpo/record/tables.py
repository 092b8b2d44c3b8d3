"""The tables of the record: the rows of questions, and the settings with which they were sampled."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from rllib_arpo.connectors import LeafAdvantages, leaf_advantages
from rllib_arpo.core.advantages import MeanAndStd
from rllib_arpo.envs.protocols.prompts import load_tokenizer
from rllib_arpo.record.question import QuestionFacts, RecordedQuestion, TreeAdvantages, TurnAdvantages, question_rows
from rllib_arpo.record.schema import EVALUATION, SCHEMA, SETTINGS_KEY, TRAINING, VERSION, VERSION_KEY
from rllib_arpo.rollout.episodes import TreeEpisode
from rllib_arpo.rollout.messages import SampledQuestion
from rllib_arpo.rollout.settings import RolloutSettings

if TYPE_CHECKING:
    from rllib_arpo.arpo_config import ARPOConfig


#: Attributes of `ARPOConfig` that a record states beside the settings of the sampler. Those of the fork rule are as the
#: user gave them; the sampler has numbers in their place.
STATED = (
    "branch_width",
    "branch_threshold",
    "branch_share",
    "baseline",
    "returns",
    "normalize_std",
    "attribution",
    "leaf_weighting",
    "loss_aggregation",
    "overlong_buffer_tokens",
)


def settings_of(config: ARPOConfig) -> dict[str, Any]:
    """The settings that the record of a run states for the questions of this configuration, or of its evaluation's."""
    rollout = RolloutSettings.from_config(config, explore=config.explore)
    return stated(config.model_name_or_path, rollout) | {name: getattr(config, name) for name in STATED}


def stated(model: str, rollout: RolloutSettings) -> dict[str, Any]:
    """The settings that a record states of the model, and of the rollout as it was sampled."""
    settings = dataclasses.asdict(rollout)
    del settings["rollout_reference"]
    branching = settings.pop("branching")
    return {"model_name_or_path": model, **settings, **branching}


def tree_advantages(computed: LeafAdvantages) -> TreeAdvantages:
    """The advantages of a question as the update computes them."""
    tree, layout = computed.tree, computed.layout
    soft, hard = computed.attribution("soft"), computed.attribution("hard")
    leaves = zip(layout.leaves, computed.advantages, strict=True)
    return TreeAdvantages(
        {tree.trajectories[leaf].agent_id: float(advantage) for leaf, advantage in leaves},
        {
            (tree.trajectories[node.trajectory].agent_id, node.turn): TurnAdvantages(
                leaves=node.leaf_end - node.leaf_begin,
                weight=float(soft.weight[n]),
                soft_positive=float(soft.a_pos[n]),
                soft_negative=float(soft.a_neg[n]),
                # One of both is 0, the other W mean(A).
                hard_advantage=float((hard.a_pos[n] + hard.a_neg[n]) / hard.weight[n]),
            )
            for n, node in enumerate(layout.nodes)
        },
    )


def training_table(
    iteration: int,
    chosen: Sequence[tuple[SampledQuestion, TreeEpisode | None]],
    config: ARPOConfig,
    statistics: MeanAndStd,
    purpose: str = TRAINING,
) -> pa.Table:
    """The rows of training questions, each with the episode that the update trains on (None: it is left out).

    Args:
        statistics: of the rewards of the whole batch (`QuestionBatch.statistics`).
    """
    tokenizer, stated = _tokenizer(config.model_name_or_path), settings_of(config)
    questions = [
        RecordedQuestion.decoded(
            question.tree if episode is None else episode.tree,
            _facts(question, purpose, iteration),
            tokenizer,
            stated,
            advantages=None if episode is None else tree_advantages(leaf_advantages(episode.tree, config, statistics)),
        )
        for question, episode in chosen
    ]
    return record_table(questions, stated)


def evaluation_table(iteration: int, sampled: Sequence[SampledQuestion], config: ARPOConfig) -> pa.Table:
    """The rows of the questions of an evaluation."""
    held_out = config if config.in_evaluation else config.get_evaluation_config_object()
    tokenizer, stated = _tokenizer(config.model_name_or_path), settings_of(held_out)
    questions = [
        RecordedQuestion.decoded(each.tree, _facts(each, EVALUATION, iteration), tokenizer, stated) for each in sampled
    ]
    return record_table(questions, stated)


def _facts(question: SampledQuestion, purpose: str, iteration: int) -> QuestionFacts:
    return QuestionFacts(purpose, iteration, question.number, question.seconds)


def record_table(questions: Sequence[RecordedQuestion], stated: Mapping[str, Any]) -> pa.Table:
    """The rows of questions as a table of the record that states these settings."""
    metadata = {VERSION_KEY: str(VERSION), SETTINGS_KEY: json.dumps(stated, default=np.generic.item)}
    rows = [row for question in questions for row in question_rows(question)]
    return pa.Table.from_pylist(rows, schema=SCHEMA.with_metadata(metadata))


def _tokenizer(model_name_or_path: str) -> Any:
    """None if the model has none: an environment of token ids needs none."""
    try:
        return load_tokenizer(model_name_or_path)
    except ValueError:
        return None
