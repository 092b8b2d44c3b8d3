"""From the advantages of leaves to the advantages of shared tokens (docs/design.md, "Attribution")."""

from __future__ import annotations

from typing import Any

from rllib_arpo.connectors.piece import ConnectorPiece
from rllib_arpo.core.advantages import ATTRIBUTIONS, leaf_ranges
from rllib_arpo.core.columns import LAYOUTS, LEAF_ADVANTAGES, LEAF_WEIGHTS, NODE_ATTRIBUTIONS


class Attribution(ConnectorPiece):
    """Adds NODE_ATTRIBUTIONS, a `NodeAttribution` ([N] each) per question."""

    attribution: str

    def __call__(self, *, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        attribute = ATTRIBUTIONS[self.attribution]
        columns = zip(batch[LEAF_ADVANTAGES], batch[LEAF_WEIGHTS], batch[LAYOUTS], strict=True)
        batch[NODE_ATTRIBUTIONS] = [
            attribute(advantages, weights, *leaf_ranges(layout)) for advantages, weights, layout in columns
        ]
        return batch
