"""Makes the rollouts for all sides of the learner's benchmarks: packed trees, and each trajectory alone."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rllib_arpo import ARPOConfig
from rllib_arpo.connectors import build_learner_pipeline
from rllib_arpo.core.advantages import NodeAttribution
from rllib_arpo.core.columns import DENOMINATOR, LEAF_ADVANTAGES, PACKED_TREES, REWARD_SCALE, REWARD_STATISTICS
from rllib_arpo.core.packing import PackedTree, pack_tree
from rllib_arpo.core.tree import QuestionTree, StopReason, Trajectory, depth_first_layout
from rllib_arpo.learner.training_data import QuestionBatch
from rllib_arpo.rollout.episodes import TreeEpisode


def make_config(folder: str = "", dtype: str = "float32") -> ARPOConfig:
    """ARPO's defaults without importance weights, since the rollouts have no log-probs from an engine."""
    config = ARPOConfig().language_model(model_name_or_path=folder, dtype=dtype)
    return config.training(importance_cap=None, gradient_checkpointing=False)


@dataclass(frozen=True, slots=True)
class Rollouts:
    """The input of all sides.

    Attributes:
        trees: a packed tree for each question.
        paths: for each trajectory its prompt, turns and tool responses, as a tree with one chain.
        scalars: DENOMINATOR and REWARD_SCALE.
    """

    trees: list[PackedTree]
    paths: list[PackedTree]
    scalars: dict[str, float]

    @property
    def num_unique(self) -> int:
        return sum(tree.num_tokens for tree in self.trees)

    @property
    def num_flat(self) -> int:
        return sum(path.num_tokens for path in self.paths)

    def sizes(self) -> dict[str, Any]:
        """For a benchmark's detail."""
        return {
            "sharing_ratio": round(self.num_flat / self.num_unique, 4),
            "unique_tokens": self.num_unique,
            "flat_tokens": self.num_flat,
            "unique_loss_tokens": sum(tree.num_loss_tokens for tree in self.trees),
            "flat_loss_tokens": sum(path.num_loss_tokens for path in self.paths),
            "trajectories": len(self.paths),
        }


def make_rollouts(trees: Sequence[QuestionTree]) -> Rollouts:
    """Sends the questions through the learner's connectors."""
    config = make_config()
    batch = QuestionBatch.plan([TreeEpisode(tree) for tree in trees], config)
    columns = build_learner_pipeline(config)(
        rl_module=None, batch={}, episodes=batch.episodes, shared_data={REWARD_STATISTICS: batch.statistics}
    )
    paths = [
        _path(computed.tree, computed.tree.trajectories[leaf], advantage, weight)
        for computed in columns[LEAF_ADVANTAGES]
        for leaf, advantage, weight in zip(computed.layout.leaves, computed.advantages, computed.weights, strict=True)
    ]
    [minibatch] = batch.minibatches
    scalars = {DENOMINATOR: minibatch.denominator, REWARD_SCALE: columns[REWARD_SCALE]}
    return Rollouts(columns[PACKED_TREES], paths, scalars)


def _path(tree: QuestionTree, trajectory: Trajectory, advantage: float, weight: float) -> PackedTree:
    turns = tuple(tree.path(trajectory.agent_id))
    alone = QuestionTree(tree.question_id, tree.prompt, (Trajectory("0", turns, StopReason.ANSWER),))
    masses = (weight * max(advantage, 0.0), weight * min(advantage, 0.0), weight)
    attribution = NodeAttribution(*(np.full(len(turns), mass) for mass in masses))
    return pack_tree(alone, depth_first_layout(alone), attribution)
