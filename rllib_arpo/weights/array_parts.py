"""Sends weights as arrays in parts, a layer or so each: while one is put away, the next one leaves the device."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import ray

if TYPE_CHECKING:
    import numpy as np
    import torch
    from torch import Tensor

#: Bytes from which on a part is complete: half a layer of a 7B model in 16 bits.
PART_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class ArrayParts:
    """Weights in Ray's object store.

    Attributes:
        parts: each is a dict of arrays by name; no name is in two of them.
    """

    parts: tuple[ray.ObjectRef, ...]

    def get(self) -> dict[str, np.ndarray]:
        """All weights; the arrays are the object store's own memory."""
        return {name: array for part in ray.get(list(self.parts)) for name, array in part.items()}


def put_weights(weights: Mapping[str, Tensor], dtype: torch.dtype | None, part_bytes: int = PART_BYTES) -> ArrayParts:
    """Puts weights into the object store; of those on a GPU three parts at most are in the CPU's memory beside it.

    If the tensors are split, all learners must call this function; the first one puts them, the others put nothing.

    Args:
        weights: by name; a tied one, which has several names, travels once.
        dtype: to which they are cast on their device; None: their own.
    """
    return ArrayParts(tuple(ray.put(part) for part in arrays_in_parts(weights, dtype, part_bytes)))


def arrays_in_parts(
    weights: Mapping[str, Tensor], dtype: torch.dtype | None, part_bytes: int = PART_BYTES
) -> Iterator[dict[str, np.ndarray]]:
    """The weights as arrays on the CPU (`as_array`), by name; views where a tensor is there already, in this type.

    From a GPU they come through pinned memory, which torch uses again once a part is dropped.
    """
    import torch.distributed as dist
    from torch.distributed.tensor import DTensor

    is_split = any(isinstance(weight, DTensor) for weight in weights.values())
    keeps = not is_split or dist.get_rank() == 0
    ahead: _Leaving | None = None
    for part in _parts(weights, dtype, part_bytes):
        leaving = _Leaving(part, dtype, keeps=keeps)
        if keeps and ahead is not None:
            yield ahead.arrays()
        ahead = leaving
    if keeps and ahead is not None:
        yield ahead.arrays()


def _parts(weights: Mapping[str, Tensor], dtype: torch.dtype | None, part_bytes: int) -> Iterator[dict[str, Tensor]]:
    """Runs of weights, in their order; a tied one is where its first name is, under all of its names."""
    names: dict[int, list[str]] = {}
    for name, weight in weights.items():
        names.setdefault(id(weight), []).append(name)
    part: dict[str, Tensor] = {}
    size = 0
    for weight in {id(weight): weight for weight in weights.values()}.values():
        part |= dict.fromkeys(names[id(weight)], weight)
        size += weight.numel() * (dtype or weight.dtype).itemsize
        if size >= part_bytes:
            yield part
            part, size = {}, 0
    if part:
        yield part


class _Leaving:
    """A part on its way to the CPU. Where learners have pieces of tensors, all assemble them, and one `keeps` them."""

    def __init__(self, part: Mapping[str, Tensor], dtype: torch.dtype | None, *, keeps: bool):
        import torch

        from rllib_arpo.policy.sharded_state import whole_tensors

        distinct = {str(id(weight)): weight for weight in part.values()}
        copies = {key: _to_cpu(weight) for key, weight in whole_tensors(distinct, dtype) if keeps}
        self._copies = {name: copies[str(id(weight))] for name, weight in part.items() if keeps}
        device = next(iter(part.values())).device
        self._arrived = torch.cuda.current_stream(device).record_event() if device.type == "cuda" else None

    def arrays(self) -> dict[str, np.ndarray]:
        from rllib_arpo.policy.checkpoint_names import as_array

        if self._arrived is not None:
            self._arrived.synchronize()
        arrays = {id(copy): as_array(copy) for copy in self._copies.values()}
        return {name: arrays[id(copy)] for name, copy in self._copies.items()}


def _to_cpu(tensor: Tensor) -> Tensor:
    """The tensor itself if it is there; otherwise a copy in pinned memory, which may arrive later."""
    import torch

    if tensor.device.type == "cpu":
        return tensor
    return torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor, non_blocking=True)
