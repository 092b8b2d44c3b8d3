"""Brings the learner's weights to the engines: blocking, versioned, and verified by what the engines compute."""

from __future__ import annotations

from rllib_arpo.weights.transports import ARRAYS, AUTO
from rllib_arpo.weights.weight_sync import InProcessReload, IPCTransfer, NCCLTransfer, WeightSync

__all__ = ["WEIGHT_SYNCS", "WeightSync", "transfer_backend"]

#: By the name that `weight_sync` takes; `choose_transport` replaces "auto" when an algorithm is built.
WEIGHT_SYNCS: dict[str, type[WeightSync]] = {
    AUTO: InProcessReload,
    ARRAYS: InProcessReload,
    "nccl": NCCLTransfer,
    "ipc": IPCTransfer,
}


def transfer_backend(name: str) -> str | None:
    """The backend of vLLM's weight transfer that the engines must be built for; None: they need none."""
    return WEIGHT_SYNCS[name].backend
