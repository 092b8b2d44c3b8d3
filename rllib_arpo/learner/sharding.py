"""How the learners of a group hold the model: each all of it, or each a part.

With either the gradients of all learners' passes are summed, not averaged: the loss already has the denominator of the
whole minibatch, and shards differ in size.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from rllib_arpo.learner.gradients import broadcast_parameters, sum_gradients

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from rllib_arpo.learner.llm_rl_module import LLMRLModule


class Sharding(Protocol):
    """One way; an object of it belongs to one learner."""

    holds_part: bool
    """Whether a learner has only a part of the state: then all of them must take part to put it together."""

    def __init__(self, device: torch.device, distributed: bool): ...

    def distribute(self, module: LLMRLModule) -> None:
        """Prepares a new module, in place and before its optimizer is made."""

    def num_passes(self, own: int) -> int:
        """How many passes each learner must make where this one needs `own`."""

    def reduce_gradients(self, parameters: Sequence[Tensor]) -> list[Tensor]:
        """The gradients of `parameters` after all passes, summed over the learners: this one's part of them.

        A parameter without a gradient, as on a learner without a question, has gradient 0.
        """

    def norm(self, gradients: Sequence[Tensor]) -> float:
        """The norm of all gradients of the whole model, the same on every learner."""


class Replicas:
    """Every learner has the whole model; one explicit all-reduce per optimizer step (`learner/gradients.py`)."""

    holds_part = False

    def __init__(self, device: torch.device, distributed: bool):
        self._distributed = distributed

    def distribute(self, module: LLMRLModule) -> None:
        """All learners begin alike."""
        if self._distributed:
            broadcast_parameters(module.parameters())

    def num_passes(self, own: int) -> int:
        return own

    def reduce_gradients(self, parameters: Sequence[Tensor]) -> list[Tensor]:
        return sum_gradients(parameters, self._distributed)

    def norm(self, gradients: Sequence[Tensor]) -> float:
        return torch.nn.utils.get_total_norm(gradients).item()


class FSDP2:
    """Parameters, gradients and optimizer state are cut up over the learners by `fully_shard`.

    A decoder layer is put together when it computes, and its gradients are summed and cut up again right after its
    backward; what embeds and scores tokens, with the last norm, is the root. Master weights travel, and gradients are
    summed, in their own type, fp32 (fp64 for fp64): the update is that of `Replicas` but for the order of sums.

    Each forward and backward pass has collectives, so all learners must make equally many.
    """

    holds_part = True

    def __init__(self, device: torch.device, distributed: bool):
        self._device = device

    @cached_property
    def _mesh(self) -> DeviceMesh:
        from torch.distributed.device_mesh import init_device_mesh

        if self._device.type == "cuda":
            # Else the mesh takes the GPU of the local rank; but a Ray actor sees its own alone, as number 0.
            torch.cuda.init()
            torch.cuda.set_device(self._device)
        return init_device_mesh(self._device.type, (dist.get_world_size(),))

    def distribute(self, module: LLMRLModule) -> None:
        """The parameters become DTensors. No learner's weights are sent: each has loaded all and keeps its part."""
        from torch.distributed.fsdp import FSDPModule, fully_shard

        for layer in module.causal_lm.get_decoder().layers:
            fully_shard(layer, mesh=self._mesh)
        # By default the root would stay in one piece after a forward pass without a backward, and miss later weights.
        fully_shard(module.scorer, mesh=self._mesh, reshard_after_forward=True)
        for part in module.scorer.modules():
            if isinstance(part, FSDPModule):
                part.set_gradient_divide_factor(1.0)
                # A sum with a factor, even 1, is an operation that gloo has not.
                part.set_force_sum_reduction_for_comms(True)

    def num_passes(self, own: int) -> int:
        largest = torch.tensor(own, device=self._device)
        dist.all_reduce(largest, op=dist.ReduceOp.MAX)
        return int(largest.item())

    def reduce_gradients(self, parameters: Sequence[Tensor]) -> list[Tensor]:
        return sum_gradients(parameters, distributed=False)

    def norm(self, gradients: Sequence[Tensor]) -> float:
        return torch.nn.utils.get_total_norm(gradients).full_tensor().item()


SHARDINGS: dict[str, type[Sharding]] = {"none": Replicas, "fsdp2": FSDP2}
"""By the name that `sharding` takes."""
