"""The weight of each trajectory in the loss (docs/design.md, section 1, "Weights")."""

from __future__ import annotations

from typing import Any

from ray.rllib.connectors.connector_v2 import ConnectorV2

from rllib_arpo.connectors.columns import LAYOUTS, LEAF_WEIGHTS, TREES
from rllib_arpo.core.advantages import leaf_weights


class LeafWeights(ConnectorV2):
    """Adds LEAF_WEIGHTS, [L] float64 per question: unnormalised, the learner divides by the minibatch's denominator."""

    def __init__(
        self,
        input_observation_space=None,
        input_action_space=None,
        *,
        loss_aggregation: str,
        leaf_weighting: str,
        max_response_tokens: int,
    ) -> None:
        super().__init__(input_observation_space, input_action_space)
        self.loss_aggregation = loss_aggregation
        self.leaf_weighting = leaf_weighting
        self.max_response_tokens = max_response_tokens

    def __call__(self, *, batch: dict[str, Any], **kwargs) -> dict[str, Any]:
        batch[LEAF_WEIGHTS] = [
            leaf_weights(tree, layout, self.loss_aggregation, self.leaf_weighting, self.max_response_tokens)
            for tree, layout in zip(batch[TREES], batch[LAYOUTS], strict=True)
        ]
        return batch
