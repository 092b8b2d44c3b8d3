"""DAPO's soft penalty for long responses (arXiv 2503.14476, eq. 13)."""

from __future__ import annotations

from typing import Any

import numpy as np
from ray.rllib.connectors.connector_v2 import ConnectorV2

from rllib_arpo.connectors.columns import LAYOUTS, LEAF_REWARDS, TREES
from rllib_arpo.core.advantages import overlong_penalty
from rllib_arpo.core.tree import QuestionTree, TreeLayout


class OverlongPenalty(ConnectorV2):
    """Adds the penalty of each leaf's response to LEAF_REWARDS; the logged rewards stay as the environment gave them.

    A response is what `max_response_tokens` counts: the generated and the tool tokens of the leaf's whole path.
    """

    def __init__(
        self,
        input_observation_space=None,
        input_action_space=None,
        *,
        max_response_tokens: int,
        overlong_buffer_tokens: int,
    ) -> None:
        super().__init__(input_observation_space, input_action_space)
        self.max_response_tokens = max_response_tokens
        self.overlong_buffer_tokens = overlong_buffer_tokens

    def __call__(self, *, batch: dict[str, Any], **kwargs) -> dict[str, Any]:
        batch[LEAF_REWARDS] = [
            rewards + [self._penalty(num_tokens) for num_tokens in response_tokens(tree, layout)]
            for rewards, tree, layout in zip(batch[LEAF_REWARDS], batch[TREES], batch[LAYOUTS], strict=True)
        ]
        return batch

    def _penalty(self, num_tokens: int) -> float:
        return overlong_penalty(num_tokens, self.max_response_tokens, self.overlong_buffer_tokens)


def response_tokens(tree: QuestionTree, layout: TreeLayout) -> np.ndarray:
    """Generated and tool tokens on the path of each leaf that counts, [L] int64."""
    lengths = np.zeros(len(layout.leaves), dtype=np.int64)
    for node in layout.nodes:
        turn = tree.trajectories[node.trajectory].turns[node.turn]
        lengths[node.leaf_begin : node.leaf_end] += len(turn.token_ids) + len(turn.observation)
    return lengths
