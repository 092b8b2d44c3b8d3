"""Converts tensors that may be split among the learners (DTensors) to whole arrays, and back."""

import copy
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.tensor import DTensor, distribute_tensor

from rllib_arpo.policy.checkpoint_names import as_array


def whole_array(tensor: Tensor, dtype: torch.dtype | None = None) -> np.ndarray | None:
    """The whole tensor on the CPU (`as_array`); a view if it is already there.

    If the tensor is split, all learners must call this function; the first gets the array, the others None.

    Args:
        dtype: the type to which the tensor is cast on its device, before anything travels; None: its own.
    """
    is_split = isinstance(tensor, DTensor)
    whole = _whole(tensor, dtype)
    return None if is_split and dist.get_rank() != 0 else as_array(whole.cpu())


def whole_tensors(tensors: Mapping[str, Tensor], dtype: torch.dtype | None = None) -> Iterator[tuple[str, Tensor]]:
    """The whole tensors on their devices, by name, one after the other.

    If the tensors are split, all learners must iterate over all of them.

    Args:
        dtype: see `whole_array`.
    """
    for name, tensor in tensors.items():
        yield name, _whole(tensor, dtype)


def _whole(tensor: Tensor, dtype: torch.dtype | None) -> Tensor:
    part = tensor.detach().to(dtype or tensor.dtype)
    return part.full_tensor() if isinstance(part, DTensor) else part


def returns_whole(norm: Callable[..., Tensor | None]) -> Callable[..., Tensor | None]:
    """Makes RLlib's norm of gradients return a whole tensor: RLlib's metrics cannot average DTensors.

    If the gradients are split, all learners must call the norm.
    """

    def whole_norm(*args: Any, **kwargs: Any) -> Tensor | None:
        result = norm(*args, **kwargs)
        return None if result is None else _whole(result, None)

    return whole_norm


def part_like(whole: np.ndarray | Tensor, like: Tensor) -> Tensor:
    """The part of `whole` that a learner keeps: split like `like`, which has the same shape, and on its device.

    No learner sends anything, since each has the whole.
    """
    # Arrays from Ray's object store are read-only, which `from_numpy` warns about.
    tensor = torch.tensor(whole) if isinstance(whole, np.ndarray) else whole
    if not isinstance(like, DTensor):
        return tensor.to(like.device)
    return distribute_tensor(tensor, like.device_mesh, like.placements, src_data_rank=None)


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


def part_of_first(whole: Tensor, like: Tensor) -> Tensor:
    """The part of the first learner's `whole` that this learner keeps: split like `like`, and on its device.

    All learners must call this function; only the shape and the type of the others' `whole` are read.
    """
    return distribute_tensor(whole.to(like.device), like.device_mesh, like.placements, src_data_rank=0)


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
        if not isinstance(value, np.ndarray | np.generic):
            return value
        if value.shape != parameter.shape:
            return torch.tensor(value)  # Step counters have no shape and are the same on all learners.
        return value if takes_arrays else part_like(value, parameter)

    loaded = {
        index: {name: own(value, parameters[index]) for name, value in values.items()}
        for index, values in state["state"].items()
    }
    optimizer.load_state_dict({"state": loaded, "param_groups": optimizer.state_dict()["param_groups"]})
