"""Brings the learner's weights to the engines: blocking, versioned, and verified by the engines' log-probs."""

from __future__ import annotations

from rllib_arpo.weights.transports import ARRAYS, AUTO
from rllib_arpo.weights.weight_sync import InProcessReload, IPCTransfer, NCCLTransfer, WeightSync

__all__ = ["WEIGHT_SYNCS", "WeightSync", "transfer_backend"]

#: Value of `weight_sync` -> class; `choose_transport` replaces "auto" when an algorithm is built.
WEIGHT_SYNCS: dict[str, type[WeightSync]] = {
    AUTO: InProcessReload,
    ARRAYS: InProcessReload,
    "nccl": NCCLTransfer,
    "ipc": IPCTransfer,
}


def transfer_backend(name: str) -> str | None:
    """The backend of vLLM's weight transfer that the engines must be built for; None: they need none."""
    return WEIGHT_SYNCS[name].backend
