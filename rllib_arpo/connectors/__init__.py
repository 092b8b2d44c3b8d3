"""The learner connector pipeline, from episodes to packed trees. Each piece adds one thing."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ray.rllib.connectors.connector_v2 import ConnectorV2
from ray.rllib.connectors.learner import LearnerConnectorPipeline

from rllib_arpo.connectors.attribution import Attribution
from rllib_arpo.connectors.depth_first_packing import DepthFirstPacking
from rllib_arpo.connectors.episodes_to_trees import EpisodesToTrees
from rllib_arpo.connectors.group_advantage import BatchAdvantage, GroupAdvantage, TreeAdvantage
from rllib_arpo.connectors.leaf_weights import LeafWeights
from rllib_arpo.connectors.overlong_penalty import OverlongPenalty

if TYPE_CHECKING:
    from rllib_arpo.arpo_config import ARPOConfig

#: `baseline` -> the piece that computes the advantages.
BASELINES: dict[str, Callable[[ARPOConfig], ConnectorV2]] = {
    "group": lambda config: GroupAdvantage(normalize_std=config.normalize_std),
    "batch": lambda config: BatchAdvantage(),
    "tree": lambda config: TreeAdvantage(normalize_std=config.normalize_std),
}


def reward_connectors(config: ARPOConfig) -> list[ConnectorV2]:
    """The pieces that end with the final rewards. The driver runs them too, for the statistics of the whole batch."""
    pieces: list[ConnectorV2] = [EpisodesToTrees()]
    if config.overlong_buffer_tokens is not None:
        pieces.append(
            OverlongPenalty(
                max_response_tokens=config.max_response_tokens, overlong_buffer_tokens=config.overlong_buffer_tokens
            )
        )
    return pieces


def advantage_connectors(config: ARPOConfig) -> list[ConnectorV2]:
    """The pieces that end with the advantages and the weights of the leaves. The record of trees runs them too."""
    return [
        *reward_connectors(config),
        BASELINES[config.baseline](config),
        LeafWeights(
            loss_aggregation=config.loss_aggregation,
            leaf_weighting=config.leaf_weighting,
            max_response_tokens=config.max_response_tokens,
        ),
    ]


def build_learner_pipeline(
    config: ARPOConfig, input_observation_space: Any = None, input_action_space: Any = None
) -> LearnerConnectorPipeline:
    """From episodes to PACKED_TREES; it has none of RLlib's default pieces, which pad and batch single steps.

    It has none of the user's pieces either: the driver runs those before it plans the update (`users.py`).
    """
    pieces = [
        *advantage_connectors(config),
        Attribution(attribution=config.attribution),
        DepthFirstPacking(with_entropies=config.entropy_advantage_coeff > 0),
    ]
    return LearnerConnectorPipeline(
        input_observation_space=input_observation_space, input_action_space=input_action_space, connectors=pieces
    )
