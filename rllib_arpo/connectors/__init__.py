"""The learner connector pipeline: from episodes to packed trees, each piece adds one thing."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from ray.rllib.connectors.connector_v2 import ConnectorV2
from ray.rllib.connectors.learner import LearnerConnectorPipeline

from rllib_arpo.connectors.attribution import Attribution
from rllib_arpo.connectors.depth_first_packing import DepthFirstPacking
from rllib_arpo.connectors.episodes_to_trees import EpisodesToTrees
from rllib_arpo.connectors.group_advantage import BatchAdvantage, GroupAdvantage
from rllib_arpo.connectors.leaf_weights import LeafWeights
from rllib_arpo.connectors.overlong_penalty import OverlongPenalty

if TYPE_CHECKING:
    from rllib_arpo.arpo_config import ARPOConfig

#: `baseline` -> the piece that computes the advantages.
BASELINES: dict[str, Callable[[ARPOConfig], ConnectorV2]] = {
    "group": lambda config: GroupAdvantage(normalize_std=config.normalize_std),
    "batch": lambda config: BatchAdvantage(),
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


def user_connectors(config: ARPOConfig, input_observation_space, input_action_space) -> list[ConnectorV2]:
    """The pieces of `config.learners(learner_connector=...)`, read as RLlib reads them.

    Raises:
        ValueError: the function returned anything but a `ConnectorV2` or a list of them.
    """
    if config._learner_connector is None:
        return []
    made = config._learner_connector(input_observation_space, input_action_space)
    pieces = list(made) if isinstance(made, (list, tuple)) else [made]
    if not all(isinstance(piece, ConnectorV2) for piece in pieces):
        raise ValueError(f"learner_connector must return a ConnectorV2 or a list of them, not {made!r}.")
    return pieces


def build_learner_pipeline(
    config: ARPOConfig, input_observation_space=None, input_action_space=None
) -> LearnerConnectorPipeline:
    """From episodes to PACKED_TREES; RLlib's default pieces, which pad and batch single steps, are not among them.

    The user's pieces run first, on the learners only: the driver plans the update (denominators, reward statistics)
    from the episodes as they were sampled.
    """
    pieces = [
        *user_connectors(config, input_observation_space, input_action_space),
        *reward_connectors(config),
        BASELINES[config.baseline](config),
        LeafWeights(
            loss_aggregation=config.loss_aggregation,
            leaf_weighting=config.leaf_weighting,
            max_response_tokens=config.max_response_tokens,
        ),
        Attribution(attribution=config.attribution),
        DepthFirstPacking(),
    ]
    return LearnerConnectorPipeline(
        input_observation_space=input_observation_space, input_action_space=input_action_space, connectors=pieces
    )
