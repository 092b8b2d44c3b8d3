"""The weight of each trajectory in the loss (docs/design.md, "Weights")."""

from __future__ import annotations

from typing import Any

from rllib_arpo.connectors.piece import ConnectorPiece
from rllib_arpo.core.advantages import leaf_weights
from rllib_arpo.core.columns import LAYOUTS, LEAF_WEIGHTS, TREES


class LeafWeights(ConnectorPiece):
    """Adds LEAF_WEIGHTS, [L] float64 per question: unnormalised, the learner divides by the minibatch's denominator."""

    loss_aggregation: str
    leaf_weighting: str
    max_response_tokens: int

    def __call__(self, *, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        batch[LEAF_WEIGHTS] = [
            leaf_weights(tree, layout, self.loss_aggregation, self.leaf_weighting, self.max_response_tokens)
            for tree, layout in zip(batch[TREES], batch[LAYOUTS], strict=True)
        ]
        return batch
