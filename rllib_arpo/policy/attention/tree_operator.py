"""Tree attention as one operator of torch, with its own backward pass: `torch.compile` does not look into it.

Operators take only tensors and numbers, so this module keeps the plan of a pass under a number, and the operator gets
the number. It is a tensor, since compiled code may depend on the values of numbers, but never on a tensor's values.
"""

from __future__ import annotations

import itertools
import weakref
from collections import deque
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

_NUMBERS = itertools.count()
_PLANS: dict[int, TreePlan] = {}


class TreePlan(Protocol):
    """The attention of one pass of T tokens, planned by one kernel; H is a multiple of H_kv."""

    @property
    def num_tokens(self) -> int:
        """T."""

    @property
    def dtype(self) -> torch.dtype:
        """The dtype in which attention is computed."""

    @classmethod
    def plan(cls, ends: np.ndarray, dtype: torch.dtype, device: torch.device, window: int | None = None) -> TreePlan:
        """Plans a pass.

        Args:
            ends: [T] int64; token t attends to s iff s <= t < ends[s].
            window: how many tokens the attention reaches back, the token's own included; None: the whole path.
        """

    def forward(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Query [1, H, T, D], key and value [1, H_kv, T, D] -> output [1, H, T, D], log-sum-exps [1, H, T].

        The output is laid out as [1, T, H, D] for the output projection; `scaling` None is 1 / sqrt(D).
        """

    def backward(
        self,
        grad_output: torch.Tensor,
        inputs: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
        result: tuple[torch.Tensor, torch.Tensor],
        scaling: float | None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """The gradients of query, key and value; `result` is what `forward` returned for these `inputs`."""


@dataclass(frozen=True, slots=True)
class PlannedPass:
    """A plan, and the number under which the operator finds it: a tensor [], int64, on the CPU.

    The plan lives as long as this tensor, which the backward pass also holds.
    """

    plan: TreePlan
    number: torch.Tensor

    @classmethod
    def of(cls, plan: TreePlan) -> PlannedPass:
        number = torch.tensor(next(_NUMBERS))
        _PLANS[int(number)] = plan
        weakref.finalize(number, _PLANS.pop, int(number))
        return cls(plan, number)

    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float | None
    ) -> torch.Tensor:
        """Query [1, H, T, D], key and value [1, H_kv, T, D], all in the plan's dtype -> [1, H, T, D]."""
        return _tree_attention(query, key, value, self.number, scaling)[0]


class _Kept(AbstractContextManager[None]):
    """While one is entered, the operator stores its results or, if `are_read`, returns the stored ones in order."""

    def __init__(self, results: deque[tuple[torch.Tensor, torch.Tensor]], are_read: bool):
        self.results, self.are_read = results, are_read

    def __enter__(self) -> None:
        self._token = _KEPT.set(self)

    def __exit__(self, *_: object) -> None:
        _KEPT.reset(self._token)


_KEPT: ContextVar[_Kept | None] = ContextVar("kept results of tree attention", default=None)


def keep_attention() -> tuple[_Kept, _Kept]:
    """For `torch.utils.checkpoint`: contexts that keep a layer's attention, so it is not computed again.

    Older versions of torch compile nothing under torch's own selective checkpointing.
    """
    results: deque[tuple[torch.Tensor, torch.Tensor]] = deque()
    return _Kept(results, are_read=False), _Kept(results, are_read=True)


@torch.library.custom_op("rllib_arpo::tree_attention", mutates_args=())
def _tree_attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, number: torch.Tensor, scaling: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    plan = _PLANS[int(number)]
    if query.shape[0] != 1 or query.shape[2] != plan.num_tokens:
        raise ValueError(f"the tree has {plan.num_tokens} tokens, but the queries have the shape {list(query.shape)}.")
    kept = _KEPT.get()
    if kept is not None and kept.are_read:
        return kept.results.popleft()
    result = plan.forward(query, key, value, scaling)
    if kept is not None:
        output, log_sum_exp = result
        kept.results.append((output.detach(), log_sum_exp.detach()))
    return result


@torch.library.custom_op("rllib_arpo::tree_attention_backward", mutates_args=())
def _tree_attention_backward(
    grad_output: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    output: torch.Tensor,
    log_sum_exp: torch.Tensor,
    number: torch.Tensor,
    scaling: float | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    inputs = (query, key, value)
    return _PLANS[int(number)].backward(grad_output, inputs, (output, log_sum_exp), scaling)


def empty_tokens_first(like: torch.Tensor, width: int | None = None, dtype: torch.dtype | None = None) -> torch.Tensor:
    """An empty [1, H, T, D] (or of another width), laid out as [1, T, H, D]."""
    _, num_heads, num_tokens, own_width = like.shape
    width = own_width if width is None else width
    return like.new_empty(1, num_tokens, num_heads, width, dtype=dtype).transpose(1, 2)


@_tree_attention.register_fake
def _(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, number: torch.Tensor, scaling: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    sum_dtype = torch.promote_types(query.dtype, torch.float32)
    return empty_tokens_first(query, value.shape[-1]), query.new_empty(query.shape[:3], dtype=sum_dtype)


@_tree_attention_backward.register_fake
def _(grad_output: torch.Tensor, *tensors: Any) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    query, key, value = map(empty_tokens_first, tensors[:3])
    return query, key, value


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:
    *tensors, ctx.scaling = inputs
    *tensors, number = tensors
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*tensors, *output, number)


def _differentiate(
    ctx: Any, grad_output: torch.Tensor | None, _grad_log_sum_exp: torch.Tensor | None
) -> tuple[torch.Tensor | None, ...]:
    if grad_output is None:
        return (None,) * 5
    return *_tree_attention_backward(grad_output, *ctx.saved_tensors, ctx.scaling), None, None


_tree_attention.register_autograd(_differentiate, setup_context=_save)
