"""The learner connector pipeline, from episodes to packed trees. Each step adds one thing."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.connectors.connector_v2 import ConnectorV2
from ray.rllib.connectors.learner import LearnerConnectorPipeline

from rllib_arpo.connectors.steps import (
    Attribution,
    BatchAdvantage,
    DepthFirstPacking,
    EpisodesToTrees,
    LeafWeights,
    OverlongPenalty,
    QuestionAdvantage,
    RewardsToGo,
)
from rllib_arpo.core.settings import settings_from


@dataclass(frozen=True, slots=True)
class PipelineSettings:
    """The settings of the steps; the attributes have the names of `ARPOConfig`'s, except `with_entropies`.

    `with_entropies`: whether advantages depend on the entropies of the tokens.
    """

    baseline: str
    returns: str
    normalize_std: bool
    attribution: str
    loss_aggregation: str
    leaf_weighting: str
    max_response_tokens: int
    overlong_buffer_tokens: int | None
    with_entropies: bool

    @classmethod
    def from_config(cls, config: AlgorithmConfig) -> PipelineSettings:
        return settings_from(cls, config, with_entropies=config.entropy_advantage_coeff > 0)


#: The `baseline` that needs the other questions' rewards.
BATCH = "batch"


def reward_connectors(settings: PipelineSettings) -> list[ConnectorV2]:
    """The steps that end with the final rewards. The driver runs them too, for the statistics of the whole batch."""
    steps: list[ConnectorV2] = [EpisodesToTrees()]
    if settings.overlong_buffer_tokens is not None:
        steps.append(
            OverlongPenalty(
                max_response_tokens=settings.max_response_tokens, overlong_buffer_tokens=settings.overlong_buffer_tokens
            )
        )
    return steps


def advantage_connectors(settings: PipelineSettings) -> list[ConnectorV2]:
    """The steps that end with the advantages and the weights of the leaves. The record of trees runs them too."""
    of_batch = settings.baseline == BATCH
    own = QuestionAdvantage(credit=settings.baseline, normalize_std=settings.normalize_std)
    steps = [*reward_connectors(settings), BatchAdvantage() if of_batch else own]
    if settings.returns == "to_go":
        own_deviation = settings.normalize_std and not of_batch
        steps.append(RewardsToGo(normalize_std=own_deviation, leaf_weighting=settings.leaf_weighting))
    steps.append(
        LeafWeights(
            loss_aggregation=settings.loss_aggregation,
            leaf_weighting=settings.leaf_weighting,
            max_response_tokens=settings.max_response_tokens,
        )
    )
    return steps


def build_learner_pipeline(
    settings: PipelineSettings, input_observation_space: Any = None, input_action_space: Any = None
) -> LearnerConnectorPipeline:
    """From episodes to PACKED_TREES; it has none of RLlib's default connectors, which pad and batch single steps.

    It has none of the user's connectors either: the driver runs those before it plans the update (`users.py`).
    """
    steps = [
        *advantage_connectors(settings),
        Attribution(attribution=settings.attribution),
        DepthFirstPacking(with_entropies=settings.with_entropies),
    ]
    return LearnerConnectorPipeline(
        input_observation_space=input_observation_space, input_action_space=input_action_space, connectors=steps
    )
