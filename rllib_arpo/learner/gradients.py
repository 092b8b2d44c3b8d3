"""Gradients over several learners: explicit collectives on plain modules.

DDP's hooks would average over ranks, start a reduction in every backward pass, and hang if a rank has no question in a
minibatch. Here each rank sums the gradients of its own passes, and one sum over the ranks follows.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor


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


def broadcast_parameters(parameters: Iterable[Tensor]) -> None:
    """Gives every rank the values of rank 0, in place."""
    for parameter in parameters:
        dist.broadcast(parameter.data, src=0)


def sum_gradients(parameters: Sequence[Tensor], distributed: bool) -> list[Tensor]:
    """The gradients accumulated in `parameters`; if `distributed`, summed over the ranks, in place.

    A parameter without a gradient, as on a rank without a question, has gradient 0.
    """
    gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in parameters]
    if distributed:
        for work in [dist.all_reduce(gradient, async_op=True) for gradient in gradients]:
            work.wait()
    return gradients


def gather_names(names: list[str], distributed: bool) -> list[str]:
    """The names of all ranks, in rank order, so that all ranks raise or none; otherwise some would wait for ever."""
    if not distributed:
        return names
    gathered: list[list[str]] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(gathered, names)
    return [name for of_rank in gathered for name in of_rank]
