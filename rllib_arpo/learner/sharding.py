"""Splits or copies the model among a group's learners, and sums their gradients in explicit collectives.

DDP's hooks would average over ranks, start a reduction in every backward pass, and hang if a rank has no question in a
minibatch. Here each rank sums the gradients of its own passes, and one sum over the ranks follows. It is not a mean:
the loss already has the denominator of the whole minibatch, and shards differ in size.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import torch
import torch.distributed as dist
from torch import Tensor

from rllib_arpo.learner.placement import SHARES_OF_PAIRS
from rllib_arpo.policy.sharded_state import scatter_from_first

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

    from rllib_arpo.policy.llm_rl_module import LLMRLModule


class NonFiniteLossError(FloatingPointError):
    """The loss or its gradient is NaN or infinite; the weights were not changed by this minibatch.

    Attributes:
        question_ids: the questions that were in the pass or minibatch.
    """

    def __init__(self, message: str, question_ids: list[str]):
        super().__init__(message, question_ids)
        self.question_ids = question_ids

    def __str__(self) -> str:
        return self.args[0]


def own_gradients(parameters: Sequence[Tensor]) -> list[Tensor]:
    """The gradients accumulated in `parameters`; 0 where there is none."""
    return [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]


def gather_names(names: list[str], distributed: bool) -> list[str]:
    """The names of all ranks, in rank order: all ranks then raise, or none; otherwise some would wait forever."""
    if not distributed:
        return names
    gathered: list[list[str]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(gathered, names)
    return [name for of_rank in gathered for name in of_rank]


def refuse_shared_gpus(own: str, store: dist.Store, rank: int, number: int) -> None:
    """Compares the learners' GPUs before their first collective: if two share one, NCCL raises an error or hangs.

    Args:
        own: the name of this learner's GPU, which no other GPU has.
        store: what all learners can read and write.

    Raises:
        ValueError: two learners have the same GPU; all of them raise.
    """
    store.set(f"gpu/{rank}", own)
    learners: dict[str, int] = {}
    for learner in range(number):
        gpu = store.get(f"gpu/{learner}").decode()
        if gpu in learners:
            raise ValueError(
                f"Learners {learners[gpu]} and {learner} have the same GPU, {gpu}, which NCCL refuses; "
                f"{SHARES_OF_PAIRS}."
            )
        learners[gpu] = learner


def _saved_buffers(module: LLMRLModule) -> list[Tensor]:
    """The buffers that a model's files have beside its weights: only the first learner has read them."""
    saved = module.state_dict()
    return [buffer for name, buffer in module.named_buffers() if name in saved]


class Replicas:
    """Every learner has the whole model; one explicit all-reduce per optimizer step.

    Each learner has its own object of this class or of a subclass.
    """

    #: Whether a learner holds only a part of the state; to assemble it, all learners must take part.
    holds_part = False

    def __init__(self, device: torch.device, distributed: bool):
        self._device, self._distributed = device, distributed

    def distribute(self, module: LLMRLModule) -> None:
        """Prepares a new module, in place and before its optimizer is made: all learners get the same weights."""
        if self._distributed:
            for tensor in [*module.parameters(), *_saved_buffers(module)]:
                dist.broadcast(tensor.data, src=0)

    def num_passes(self, own: int) -> int:
        """The number of passes that each learner must make if this one needs `own`."""
        return own

    def reduce_gradients(self, parameters: Sequence[Tensor]) -> list[Tensor]:
        """This learner's part of the gradients of `parameters` after all passes, summed over the learners.

        A parameter without a gradient, for example on a learner without a question, has gradient 0.
        """
        gradients = own_gradients(parameters)
        if self._distributed:
            for work in [dist.all_reduce(gradient, async_op=True) for gradient in gradients]:
                work.wait()
        return gradients

    def norm(self, gradients: Sequence[Tensor]) -> Tensor:
        """The norm of all gradients of the whole model, the same on every learner: a float64 scalar on the device."""
        return torch.nn.utils.get_total_norm(gradients).double()


class FSDP2(Replicas):
    """`fully_shard` splits parameters, gradients and optimizer state among the learners.

    FSDP2 assembles a decoder layer when it computes, and sums and splits its gradients right after its backward pass.
    It sends layers in the type of the products, except for models with recurrent states, whose decays need fp32. The
    root holds the embedding, the last norm and the head, which stay in fp32. Gradients are summed in fp32 (fp64 for
    fp64). So in fp32 and fp64 the update equals `Replicas`' update up to the order of sums; in bf16 the weights of the
    layers' norms are rounded as well, as the engine rounds them.

    Each forward and backward pass has collectives, so all learners must make the same number of passes.
    """

    holds_part = True

    @cached_property
    def _mesh(self) -> DeviceMesh:
        from torch.distributed.device_mesh import init_device_mesh

        if self._device.type == "cuda":
            # Otherwise the mesh would take the GPU of the local rank; but a Ray actor sees only its own GPU, number 0.
            torch.cuda.init()
            torch.cuda.set_device(self._device)
        return init_device_mesh(self._device.type, (dist.get_world_size(),))

    def distribute(self, module: LLMRLModule) -> None:
        """Turns the parameters into DTensors. The first learner, which has read the weights, sends each its part."""
        from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard

        policy = MixedPrecisionPolicy()
        if module.scorer.dtype.itemsize < 4 and module.scorer.layer_kinds.reach is None:
            policy = MixedPrecisionPolicy(module.scorer.dtype, torch.float32, cast_forward_inputs=False)
        whole = {name: parameter.data for name, parameter in module.named_parameters()}
        for layer in module.causal_lm.get_decoder().layers:
            fully_shard(layer, mesh=self._mesh, mp_policy=policy)
        # By default the root would stay assembled after a forward pass without a backward pass, and miss later weights.
        fully_shard(module.scorer, mesh=self._mesh, reshard_after_forward=True)
        for part in module.scorer.modules():
            if isinstance(part, FSDPModule):
                part.set_gradient_divide_factor(1.0)
                # gloo has no reduction with a factor, not even with factor 1.
                part.set_force_sum_reduction_for_comms(True)
        with torch.no_grad():
            for name, parameter in module.named_parameters():
                parameter.copy_(scatter_from_first(whole.pop(name), like=parameter))
        for buffer in _saved_buffers(module):
            dist.broadcast(buffer, src=0)

    def num_passes(self, own: int) -> int:
        largest = torch.tensor(own, device=self._device)
        dist.all_reduce(largest, op=dist.ReduceOp.MAX)
        return int(largest.item())

    def reduce_gradients(self, parameters: Sequence[Tensor]) -> list[Tensor]:
        return own_gradients(parameters)

    def norm(self, gradients: Sequence[Tensor]) -> Tensor:
        return torch.nn.utils.get_total_norm(gradients).full_tensor().double()


#: Value of `sharding` -> its class.
SHARDINGS: dict[str, type[Replicas]] = {"none": Replicas, "fsdp2": FSDP2}
