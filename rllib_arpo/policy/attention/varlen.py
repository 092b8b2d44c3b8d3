"""Tree attention as one call of variable-length flash attention: each chain is a sequence below its path.

The queries of a chain are its own tokens, its keys the path above it and itself; flash attention's causal mask is
aligned to the last query and the last key (bottom right), so each query sees the whole path and the chain up to itself.
`check_alignment` verifies this.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import torch

from rllib_arpo.policy.attention.chains import chains


@dataclass(frozen=True, slots=True)
class VarlenTree:
    """The attention plan of one pass (`TreePlan`) of C chains.

    Attributes:
        key_index: [m] int64, the key tokens of all chains, one chain after the other.
        query_offsets, key_offsets: [C + 1] int32, where each chain's queries and keys begin.
        max_queries, max_keys: of any chain.
    """

    num_tokens: int
    dtype: torch.dtype
    key_index: torch.Tensor
    query_offsets: torch.Tensor
    key_offsets: torch.Tensor
    max_queries: int
    max_keys: int

    @classmethod
    def plan(cls, ends: np.ndarray, dtype: torch.dtype, device: torch.device) -> VarlenTree:
        check_alignment(device, dtype)
        pass_chains = list(chains(ends))
        keys = [
            np.concatenate([np.arange(start, stop) for start, stop in (*chain.path, (chain.start, chain.stop))])
            for chain in pass_chains
        ]
        num_queries = [chain.stop - chain.start for chain in pass_chains]
        num_keys = [len(key) for key in keys]
        return cls(
            num_tokens=len(ends),
            dtype=dtype,
            key_index=torch.from_numpy(np.concatenate(keys)).to(device),
            query_offsets=_offsets(num_queries, device),
            key_offsets=_offsets(num_keys, device),
            max_queries=max(num_queries),
            max_keys=max(num_keys),
        )

    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float | None
    ) -> torch.Tensor:
        # [1, H, T, D] -> [T, H, D].
        tokens_first = [tensor[0].transpose(0, 1) for tensor in (query, key, value)]
        return _VarlenTreeAttention.apply(*tokens_first, self, scaling).transpose(0, 1)[None]


@cache
def check_alignment(device: torch.device, dtype: torch.dtype) -> None:
    """Two queries below a path of one token: the first must not see the last of the three keys, the second must.

    Raises:
        RuntimeError: flash attention aligns its causal mask differently on this machine.
    """
    zeros = torch.zeros(3, 1, 64, dtype=dtype, device=device)
    value = torch.eye(3, 64, dtype=dtype, device=device)[:, None]
    output = _varlen_attn(zeros[:2], zeros, value, _offsets([2], device), _offsets([3], device), 2, 3, None)
    expected = [[0.5, 0.5, 0.0], [1 / 3, 1 / 3, 1 / 3]]
    if not np.allclose(output[:, 0, :3].float().cpu().numpy(), expected, atol=1e-2):
        raise RuntimeError(
            "Variable-length flash attention does not align its causal mask to the last key here: "
            "set tree_attention='path_gather'."
        )


def _offsets(lengths: list[int], device: torch.device) -> torch.Tensor:
    return torch.tensor([0, *np.cumsum(lengths).tolist()], dtype=torch.int32, device=device)


class _VarlenTreeAttention(torch.autograd.Function):
    """Saves query, key and value only: the gathered keys and values grow with the number of branches."""

    @staticmethod
    def forward(
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        plan: VarlenTree,
        scaling: float | None,
    ) -> torch.Tensor:
        ctx.save_for_backward(query, key, value)
        ctx.plan, ctx.scaling = plan, scaling
        return _attend(query, key[plan.key_index], value[plan.key_index], plan, scaling)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, grad_output: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        query, key, value = ctx.saved_tensors
        index = ctx.plan.key_index
        inputs = [tensor.detach().requires_grad_() for tensor in (query, key[index], value[index])]
        with torch.enable_grad():
            output = _attend(inputs[0], inputs[1], inputs[2], ctx.plan, ctx.scaling)
        grad_query, grad_keys, grad_values = torch.autograd.grad(output, inputs, grad_output)
        return grad_query, _sum_copies(key, index, grad_keys), _sum_copies(value, index, grad_values), None, None


def _sum_copies(tensor: torch.Tensor, index: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
    """Gradient of `tensor` from that of `tensor[index]`; many branches add up, in fp32 at least."""
    total = torch.zeros_like(tensor, dtype=torch.promote_types(tensor.dtype, torch.float32))
    return total.index_add_(0, index, gradient.to(total.dtype)).to(tensor.dtype)


def _attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, plan: VarlenTree, scaling: float | None
) -> torch.Tensor:
    lengths = (plan.query_offsets, plan.key_offsets, plan.max_queries, plan.max_keys)
    return _varlen_attn(query, key, value, *lengths, scaling)


@cache
def _takes_groups(function: Callable[..., Any]) -> bool:
    return "enable_gqa" in inspect.signature(function).parameters


def _varlen_attn(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    query_offsets: torch.Tensor,
    key_offsets: torch.Tensor,
    max_queries: int,
    max_keys: int,
    scaling: float | None,
) -> torch.Tensor:
    from torch.nn.attention.varlen import varlen_attn

    offsets = (query_offsets, key_offsets, max_queries, max_keys)
    grouping = {}
    if (num_groups := query.shape[1] // key.shape[1]) > 1:
        if _takes_groups(varlen_attn):
            grouping = {"enable_gqa": True}
        else:  # torch < 2.13
            key, value = (tensor.repeat_interleave(num_groups, dim=1) for tensor in (key, value))
    return varlen_attn(query, key, value, *offsets, scale=scaling, window_size=(-1, 0), **grouping)
