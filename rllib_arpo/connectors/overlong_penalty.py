"""DAPO's soft penalty for long responses (arXiv 2503.14476, eq. 13)."""

from __future__ import annotations

from typing import Any

from rllib_arpo.connectors.piece import ConnectorPiece
from rllib_arpo.core.advantages import overlong_penalty
from rllib_arpo.core.columns import LAYOUTS, LEAF_REWARDS, TREES
from rllib_arpo.core.token_counts import response_tokens


class OverlongPenalty(ConnectorPiece):
    """Adds the penalty of each leaf's response to LEAF_REWARDS; the logged rewards stay as the environment gave them.

    A response is what `max_response_tokens` counts: the generated and the tool tokens of the leaf's whole path.
    """

    max_response_tokens: int
    overlong_buffer_tokens: int

    def __call__(self, *, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        batch[LEAF_REWARDS] = [
            rewards + [self._penalty(num_tokens) for num_tokens in response_tokens(tree, layout)]
            for rewards, tree, layout in zip(batch[LEAF_REWARDS], batch[TREES], batch[LAYOUTS], strict=True)
        ]
        return batch

    def _penalty(self, num_tokens: int) -> float:
        return overlong_penalty(num_tokens, self.max_response_tokens, self.overlong_buffer_tokens)
