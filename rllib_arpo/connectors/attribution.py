"""From the advantages of leaves to the advantages of shared tokens (docs/design.md, section 1, "Attribution")."""

from __future__ import annotations

from typing import Any

from ray.rllib.connectors.connector_v2 import ConnectorV2

from rllib_arpo.connectors.columns import LAYOUTS, LEAF_ADVANTAGES, LEAF_WEIGHTS, NODE_ATTRIBUTIONS
from rllib_arpo.core.advantages import ATTRIBUTIONS, leaf_ranges


class Attribution(ConnectorV2):
    """Adds NODE_ATTRIBUTIONS, a `NodeAttribution` ([N] each) per question."""

    def __init__(self, input_observation_space=None, input_action_space=None, *, attribution: str) -> None:
        super().__init__(input_observation_space, input_action_space)
        self.attribution = attribution

    def __call__(self, *, batch: dict[str, Any], **kwargs) -> dict[str, Any]:
        attribute = ATTRIBUTIONS[self.attribution]
        columns = zip(batch[LEAF_ADVANTAGES], batch[LEAF_WEIGHTS], batch[LAYOUTS], strict=True)
        batch[NODE_ATTRIBUTIONS] = [
            attribute(advantages, weights, *leaf_ranges(layout)) for advantages, weights, layout in columns
        ]
        return batch
