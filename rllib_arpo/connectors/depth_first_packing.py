"""Trees to flat arrays in which every token stands once."""

from __future__ import annotations

from typing import Any

from ray.rllib.connectors.connector_v2 import ConnectorV2

from rllib_arpo.connectors.columns import LAYOUTS, NODE_ATTRIBUTIONS, PACKED_TREES, TREES
from rllib_arpo.core.packing import pack_tree


class DepthFirstPacking(ConnectorV2):
    """Adds PACKED_TREES, one `PackedTree` per question; the learner cuts and joins them into passes."""

    def __call__(self, *, batch: dict[str, Any], **kwargs) -> dict[str, Any]:
        columns = zip(batch[TREES], batch[LAYOUTS], batch[NODE_ATTRIBUTIONS], strict=True)
        batch[PACKED_TREES] = [pack_tree(tree, layout, attribution) for tree, layout, attribution in columns]
        return batch
