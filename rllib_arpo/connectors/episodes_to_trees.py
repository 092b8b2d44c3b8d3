"""Episodes to trees: the only piece of the pipeline that reads episodes."""

from __future__ import annotations

from typing import Any

import numpy as np
from ray.rllib.connectors.connector_v2 import ConnectorV2
from ray.rllib.env.multi_agent_episode import MultiAgentEpisode

from rllib_arpo.core.columns import LAYOUTS, LEAF_REWARDS, TREES
from rllib_arpo.core.tree import QuestionTree, TreeLayout, depth_first_layout
from rllib_arpo.rollout.episodes import episode_to_tree


class EpisodesToTrees(ConnectorV2):
    """Adds TREES (`QuestionTree`), LAYOUTS (`TreeLayout`) and LEAF_REWARDS ([L] float64), one entry per episode."""

    def __call__(self, *, batch: dict[str, Any], episodes: list[MultiAgentEpisode], **kwargs: Any) -> dict[str, Any]:
        trees = [episode_to_tree(episode) for episode in episodes]
        layouts = [depth_first_layout(tree) for tree in trees]
        batch[TREES] = trees
        batch[LAYOUTS] = layouts
        batch[LEAF_REWARDS] = [leaf_rewards(*pair) for pair in zip(trees, layouts, strict=True)]
        return batch


def leaf_rewards(tree: QuestionTree, layout: TreeLayout) -> np.ndarray:
    """The rewards of the leaves that count, [L] float64, in `TreeLayout.leaves` order."""
    return np.array([tree.trajectories[leaf].reward for leaf in layout.leaves], dtype=np.float64)
