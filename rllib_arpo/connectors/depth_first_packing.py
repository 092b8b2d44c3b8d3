"""From trees to flat arrays in which every token occurs once."""

from __future__ import annotations

from typing import Any

from rllib_arpo.connectors.piece import ConnectorPiece
from rllib_arpo.core.columns import LAYOUTS, NODE_ATTRIBUTIONS, PACKED_TREES, TREES
from rllib_arpo.core.packing import pack_tree


class DepthFirstPacking(ConnectorPiece):
    """Adds PACKED_TREES, one `PackedTree` per question; the learner cuts and joins them into passes.

    Their `behavior_entropies` are filled in where the learner needs them (`with_entropies`).
    """

    with_entropies: bool = False

    def __call__(self, *, batch: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        columns = zip(batch[TREES], batch[LAYOUTS], batch[NODE_ATTRIBUTIONS], strict=True)
        batch[PACKED_TREES] = [
            pack_tree(tree, layout, attribution, with_entropies=self.with_entropies)
            for tree, layout, attribution in columns
        ]
        return batch
