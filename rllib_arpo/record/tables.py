"""Makes the tables of the record: the rows of questions, and the settings that sampled them."""

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


#: Attributes of `ARPOConfig` that a record has beside the sampler's settings. The fork rule's options keep the user's
#: values, for which the sampler has numbers.
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
    """The settings in the record for questions of this configuration (of a run, or of its evaluation)."""
    rollout = RolloutSettings.from_config(config, explore=config.explore)
    return stated(config.model_name_or_path, rollout) | {name: getattr(config, name) for name in STATED}


def stated(model: str, rollout: RolloutSettings) -> dict[str, Any]:
    """The settings in the record that every record has: the model and the rollout."""
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
                # One of the two is 0, the other is W mean(A).
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
    """The rows of training questions, each with the episode that the update trains on (None: not trained).

    Args:
        statistics: statistics of the whole batch's rewards (`QuestionBatch.statistics`).
    """
    tokenizer, settings = _tokenizer(config.model_name_or_path), settings_of(config)
    questions = [
        RecordedQuestion.decoded(
            question.tree if episode is None else episode.tree,
            _facts(question, purpose, iteration),
            tokenizer,
            settings,
            advantages=None if episode is None else tree_advantages(leaf_advantages(episode.tree, config, statistics)),
        )
        for question, episode in chosen
    ]
    return record_table(questions, settings)


def evaluation_table(iteration: int, sampled: Sequence[SampledQuestion], config: ARPOConfig) -> pa.Table:
    """The rows of an evaluation's questions."""
    held_out = config if config.in_evaluation else config.get_evaluation_config_object()
    tokenizer, settings = _tokenizer(config.model_name_or_path), settings_of(held_out)
    questions = [
        RecordedQuestion.decoded(each.tree, _facts(each, EVALUATION, iteration), tokenizer, settings)
        for each in sampled
    ]
    return record_table(questions, settings)


def _facts(question: SampledQuestion, purpose: str, iteration: int) -> QuestionFacts:
    return QuestionFacts(purpose, iteration, question.number, question.seconds)


def record_table(questions: Sequence[RecordedQuestion], settings: Mapping[str, Any]) -> pa.Table:
    """The rows of questions as a table, with these settings in its metadata."""
    metadata = {VERSION_KEY: str(VERSION), SETTINGS_KEY: json.dumps(settings, default=np.generic.item)}
    rows = [row for question in questions for row in question_rows(question)]
    return pa.Table.from_pylist(rows, schema=SCHEMA.with_metadata(metadata))


def _tokenizer(model_name_or_path: str) -> Any:
    """The model's tokenizer; None if it has none, since an environment of token ids needs none."""
    try:
        return load_tokenizer(model_name_or_path)
    except ValueError:
        return None
