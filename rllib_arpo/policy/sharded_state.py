"""Converts tensors that may be split among the learners (DTensors) to whole arrays, and back.

Only the first learner ever holds, reads or writes a whole array; the others send and receive their parts.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, Shard

from rllib_arpo.policy.checkpoint_names import as_array, as_tensors


def whole_array(tensor: Tensor, dtype: torch.dtype | None = None) -> np.ndarray | None:
    """The whole tensor on the CPU (`as_array`); a view if it is already there.

    If the tensor is split, all learners must call this function; the first gets the array, the others None.

    Args:
        dtype: the type to which the tensor is cast on its device, before anything travels; None: its own.
    """
    whole = _whole(tensor, dtype)
    return None if whole is None else as_array(whole.cpu())


def whole_tensors(tensors: Mapping[str, Tensor], dtype: torch.dtype | None = None) -> Iterator[tuple[str, Tensor]]:
    """The whole tensors on their devices, by name, one after the other.

    If the tensors are split, all learners must iterate to the end; the first gets the tensors, the others none.

    Args:
        dtype: see `whole_array`.
    """
    for name, tensor in tensors.items():
        whole = _whole(tensor, dtype)
        if whole is not None:
            yield name, whole


def _whole(tensor: Tensor, dtype: torch.dtype | None) -> Tensor | None:
    part = tensor.detach().to(dtype or tensor.dtype)
    return _gather(part) if isinstance(part, DTensor) else part


def _gather(split: DTensor) -> Tensor | None:
    """The whole tensor on the first learner. `full_tensor()` would make it on all."""
    rows, group = _rows(split), split.device_mesh.get_group()
    own = split.to_local()
    sent = own if len(own) == rows else torch.cat([own, own.new_zeros(rows - len(own), *own.shape[1:])])
    whole = own.new_empty(rows * group.size(), *own.shape[1:]) if dist.get_rank() == 0 else None
    dist.gather(sent, None if whole is None else [*whole.split(rows)], group=group, group_dst=0)
    return None if whole is None else whole[: len(split)]


def _rows(split: DTensor) -> int:
    """The length of each learner's part of a tensor that FSDP2 has split; only the last parts may be shorter."""
    if split.placements != (Shard(0),):
        raise NotImplementedError(f"{split.placements}: only tensors that FSDP2 has split along dimension 0.")
    return math.ceil(len(split) / split.device_mesh.size())


def returns_whole(norm: Callable[..., Tensor | None]) -> Callable[..., Tensor | None]:
    """Makes RLlib's norm of gradients return a whole tensor: RLlib's metrics cannot average DTensors.

    If the gradients are split, all learners must call the norm.
    """

    def whole_norm(*args: Any, **kwargs: Any) -> Tensor | None:
        result = norm(*args, **kwargs)
        return result.full_tensor() if isinstance(result, DTensor) else result

    return whole_norm


@dataclass(frozen=True, slots=True)
class HeldByFirst:
    """An array that the first learner has; `scatter_from_first` sends each learner its part.

    Attributes:
        shape, dtype: of the whole array.
        whole: the array itself on the first learner; None on the others.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    whole: Tensor | None

    def __reduce__(self) -> tuple[Any, ...]:
        """The array does not travel in a pickle."""
        return type(self), (self.shape, self.dtype, None)


def _held(array: np.ndarray | np.generic | Tensor) -> HeldByFirst:
    tensor = array if isinstance(array, Tensor) else as_tensors({"": np.asarray(array)})[0][1]
    return HeldByFirst(tuple(tensor.shape), tensor.dtype, tensor)


def _announced(value: Any) -> Any:
    """`value` with `HeldByFirst`s in place of arrays and tensors, also in dicts; numbers without a shape stay."""
    if isinstance(value, Mapping):
        return {key: _announced(item) for key, item in value.items()}
    return _held(value) if isinstance(value, np.ndarray | Tensor) and value.shape else value


def read_by_first(read: Callable[[], Any]) -> Any:
    """Calls `read` on the first learner only and returns its result on all; all must call this function.

    In the result `HeldByFirst`s stand for the arrays; a single learner gets the result itself.

    Raises:
        RuntimeError: reading has failed, on the other learners; the first raises the error itself.
    """
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return read()
    sent: list[Any] = [None, None]
    error: Exception | None = None
    if dist.get_rank() == 0:
        try:
            sent[0] = _announced(read())
        except Exception as caught:
            error, sent[1] = caught, f"{type(caught).__name__}: {caught}"
    dist.broadcast_object_list(sent, src=0)
    if sent[1] is not None:
        raise error or RuntimeError(sent[1])
    return sent[0]


def scatter_from_first(whole: np.ndarray | Tensor | HeldByFirst, like: Tensor) -> Tensor:
    """Sends each learner its part of the first learner's array, split like `like` and on its device.

    All learners must call it if `like` is split or `whole` is a `HeldByFirst`; only shape and type count in the others'
    `whole`. Otherwise each learner copies its own.
    """
    first = whole if isinstance(whole, HeldByFirst) else _held(whole)
    if isinstance(like, DTensor):
        return _scatter(first, like)
    own = torch.empty(first.shape, dtype=first.dtype, device=like.device)
    if first.whole is not None:
        own.copy_(first.whole)
    if isinstance(whole, HeldByFirst):
        dist.broadcast(own, src=0)
    return own


def _scatter(first: HeldByFirst, like: DTensor) -> Tensor:
    rows, group = _rows(like), like.device_mesh.get_group()
    own = torch.empty(rows, *first.shape[1:], dtype=first.dtype, device=like.device)
    parts = None
    if dist.get_rank() == 0:
        padded = own.new_zeros(rows * group.size(), *own.shape[1:])
        padded[: len(like)] = first.whole
        parts = [*padded.split(rows)]
    dist.scatter(own, parts, group=group, group_src=0)
    return split_like(own[: len(like.to_local())], like)


def split_like(part: Tensor, parameter: Tensor) -> Tensor:
    """This learner's part of a moment, on the parameter's device and split like it.

    A part that is already split is returned unchanged.
    """
    if isinstance(part, DTensor):
        return part
    part = part.to(parameter.device, non_blocking=True)
    if not isinstance(parameter, DTensor):
        return part
    layout = {"shape": parameter.shape, "stride": parameter.stride()}
    return DTensor.from_local(part, parameter.device_mesh, parameter.placements, run_check=False, **layout)


def optimizer_state(optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """`state_dict()` with copies as whole arrays; `whole_array` says which learner gets them."""
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]

    def whole(value: Any, parameter: Tensor) -> Any:
        if not isinstance(value, Tensor):
            return value
        # An offloaded moment of a split parameter is a plain tensor (`learner/offload.py`); a step counter is a number.
        value = split_like(value, parameter) if isinstance(parameter, DTensor) and value.dim() else value
        # A view would change with the next step. (A copy of None is None.)
        return copy.copy(whole_array(value))

    state = optimizer.state_dict()
    return {
        "state": {
            index: {name: whole(value, parameters[index]) for name, value in values.items()}
            for index, values in state["state"].items()
        },
        "param_groups": state["param_groups"],
    }


def load_optimizer_state(optimizer: torch.optim.Optimizer, state: dict[str, Any]) -> None:
    """Loads the result of `optimizer_state`, even from learners that split the state differently.

    The optimizer keeps its settings (learning rate, betas, weight decay), which come from the configuration; the caller
    sets the rate of a schedule.
    """
    parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
    takes_arrays = getattr(optimizer, "takes_arrays", False)

    def own(value: Any, parameter: Tensor) -> Any:
        if not isinstance(value, np.ndarray | np.generic | HeldByFirst):
            return value
        if value.shape != parameter.shape:
            return torch.tensor(value)  # Step counters have no shape and are the same on all learners.
        return value if takes_arrays else scatter_from_first(value, parameter)

    loaded = {
        index: {name: own(value, parameters[index]) for name, value in values.items()}
        for index, values in state["state"].items()
    }
    optimizer.load_state_dict({"state": loaded, "param_groups": optimizer.state_dict()["param_groups"]})
