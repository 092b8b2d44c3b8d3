"""The learner connector computes rewards, advantages and weights from a question's tree, and packs its tokens.

docs/design.md has the formulas, from "Group advantage" to "Weights", and under "Attribution".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from ray.rllib.algorithms.algorithm_config import AlgorithmConfig
from ray.rllib.connectors.connector_v2 import ConnectorV2
from ray.rllib.connectors.learner import LearnerConnectorPipeline

from rllib_arpo.core.advantages import (
    ATTRIBUTIONS,
    LEAF_WEIGHTINGS,
    MeanAndStd,
    NodeAttribution,
    leaf_ranges,
    leaf_weights,
    mean_and_std,
    overlong_penalty,
    reward_scale,
    to_go_offsets,
)
from rllib_arpo.core.columns import LEAF_ADVANTAGES, PACKED_TREES, REWARD_SCALE, REWARD_STATISTICS
from rllib_arpo.core.credit import advantages_of, credit_of
from rllib_arpo.core.packing import pack_tree
from rllib_arpo.core.token_counts import response_tokens
from rllib_arpo.core.tree import QuestionTree, TreeLayout, depth_first_layout
from rllib_arpo.rollout.episodes import TreeEpisode

#: The `baseline` that needs the other questions' rewards.
BATCH = "batch"


@dataclass(frozen=True, slots=True)
class LeafAdvantages:
    """A question's tree and what the update computes for its leaves; L leaves count, and the layout has N nodes.

    Attributes:
        rewards: [L] float64, `leaf_rewards`.
        advantages: [L] float64, each leaf's advantage in its last turn.
        by_node: [N, L], the advantages at each node if they differ from turn to turn; otherwise `advantages`.
        weights: [L], unnormalised: the learner divides them by the minibatch's denominator.
        offsets: [N], subtracted from the advantages at each node; None unless `returns="to_go"`.
    """

    tree: QuestionTree
    layout: TreeLayout
    rewards: np.ndarray
    advantages: np.ndarray
    by_node: np.ndarray
    weights: np.ndarray
    offsets: np.ndarray | None

    def attribution(self, name: str) -> NodeAttribution:
        """The loss's input per node; `name` is a key of `ATTRIBUTIONS`."""
        return ATTRIBUTIONS[name](self.by_node, self.weights, *leaf_ranges(self.layout), self.offsets)


def leaf_rewards(tree: QuestionTree, layout: TreeLayout, config: AlgorithmConfig) -> np.ndarray:
    """The returns of the leaves that count, [L] float64, with the overlong penalty if the configuration has one.

    The penalty is DAPO's for long responses (arXiv 2503.14476, eq. 13). It counts the tokens that
    `max_response_tokens` limits, generated and tool tokens of the leaf's whole path. Logged rewards do not include it.
    """
    rewards, buffer = tree.returns()[list(layout.leaves)], config.overlong_buffer_tokens
    if buffer is None:
        return rewards
    return rewards + [
        overlong_penalty(number, config.max_response_tokens, buffer) for number in response_tokens(tree, layout)
    ]


def leaf_advantages(tree: QuestionTree, config: AlgorithmConfig, statistics: MeanAndStd) -> LeafAdvantages:
    """Computes the advantages and the weights of a question's leaves.

    Args:
        statistics: mean and standard deviation of the rewards of the whole batch (`QuestionBatch.statistics`), with
            which `BATCH` (REINFORCE++) compares a leaf; a learner itself sees only a part of the batch.
    """
    layout = depth_first_layout(tree)
    rewards, by_node = leaf_rewards(tree, layout, config), None
    if config.baseline == BATCH:
        scale = reward_scale(statistics.std)
        advantages = (rewards - statistics.mean) / scale
    else:
        credit = credit_of(config.baseline)
        advantages, by_node = advantages_of(credit, rewards, tree, layout, config.normalize_std)
        scale = reward_scale(mean_and_std(rewards).std) if config.normalize_std else 1.0
    weighting, offsets = config.leaf_weighting, None
    if config.returns == "to_go":
        offsets = to_go_offsets(tree, layout, LEAF_WEIGHTINGS[weighting](layout), scale)
    return LeafAdvantages(
        tree,
        layout,
        rewards,
        advantages,
        by_node=advantages if by_node is None else by_node,
        weights=leaf_weights(tree, layout, config.loss_aggregation, weighting, config.max_response_tokens),
        offsets=offsets,
    )


class TreeConnector(ConnectorV2):
    """Adds, per question, LEAF_ADVANTAGES (`LeafAdvantages`) and PACKED_TREES (`PackedTree`), and for all REWARD_SCALE.

    The learner cuts and joins the packed trees into passes. REWARD_SCALE is the number by which the rewards of the
    batch as a whole are divided: 1 unless the baseline is `BATCH`.
    """

    def __init__(self, config: AlgorithmConfig, *spaces: Any) -> None:
        super().__init__(*spaces)
        self._config = config

    def __call__(
        self, *, batch: dict[str, Any], episodes: Sequence[TreeEpisode], shared_data: dict[str, Any], **kwargs: Any
    ) -> dict[str, Any]:
        config, statistics = self._config, shared_data[REWARD_STATISTICS]
        computed = [leaf_advantages(episode.tree, config, statistics) for episode in episodes]
        batch[LEAF_ADVANTAGES] = computed
        batch[PACKED_TREES] = [
            pack_tree(
                one.tree,
                one.layout,
                one.attribution(config.attribution),
                with_entropies=config.entropy_advantage_coeff > 0,
            )
            for one in computed
        ]
        batch[REWARD_SCALE] = reward_scale(statistics.std) if config.baseline == BATCH else 1.0
        return batch


def build_learner_pipeline(
    config: AlgorithmConfig, input_observation_space: Any = None, input_action_space: Any = None
) -> LearnerConnectorPipeline:
    """RLlib's pipeline with only `TreeConnector`; RLlib's default connectors would pad and batch single steps.

    The driver runs the user's connectors before it plans the update (`users.py`).
    """
    spaces = input_observation_space, input_action_space
    return LearnerConnectorPipeline(*spaces, connectors=[TreeConnector(config, *spaces)])
