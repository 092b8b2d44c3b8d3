"""Tree attention as one call of variable-length flash attention: each chain is a sequence below its path.

The queries of a chain are its own tokens, its keys the path above it and itself; flash attention's causal mask is
aligned to the last query and the last key (bottom right), so each query sees the whole path and the chain up to itself.
`check_alignment` verifies this. The backward pass takes output and log-sum-exps from the forward pass, but gathers keys
and values again: saved copies would grow with the number of branches.
"""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch

from rllib_arpo.policy.attention.chains import chains, last_tokens, tokens_of
from rllib_arpo.policy.attention.tree_operator import empty_tokens_first


@dataclass(frozen=True, slots=True)
class VarlenTree:
    """The attention plan of one pass (`TreePlan`) of C chains.

    Attributes:
        key_index: [m] int64, the key tokens of all chains, one chain after the other.
        query_offsets, key_offsets: [C + 1] int32, where each chain's queries and keys begin.
        max_queries, max_keys: the most that any chain has.
        window: how many keys a query attends to at most, itself included; None: all of its path.
    """

    num_tokens: int
    dtype: torch.dtype
    key_index: torch.Tensor
    query_offsets: torch.Tensor
    key_offsets: torch.Tensor
    max_queries: int
    max_keys: int
    window: int | None = None

    @classmethod
    def plan(cls, ends: np.ndarray, dtype: torch.dtype, device: torch.device, window: int | None = None) -> VarlenTree:
        check_alignment(device, dtype)
        pass_chains = list(chains(ends))
        paths = [chain.path if window is None else last_tokens(chain.path, window - 1) for chain in pass_chains]
        keys = [tokens_of((*path, (chain.start, chain.stop))) for chain, path in zip(pass_chains, paths, strict=True)]
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
            window=window,
        )

    def forward(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        gathered = self._gathered(query, key, value)
        output, log_sum_exp = _flash_forward(*gathered, self._lengths, scaling, self._before)
        return _heads_first(output), log_sum_exp[None]

    def backward(
        self,
        grad_output: torch.Tensor,
        inputs: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
        result: tuple[torch.Tensor, torch.Tensor],
        scaling: float | None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        saved = (_tokens_first(result[0]), result[1][0])
        gathered = self._gathered(*inputs)
        grads = _flash_backward(_tokens_first(grad_output), gathered, saved, self._lengths, scaling, self._before)
        grad_key, grad_value = (self._sum_copies(*pair) for pair in zip(inputs[1:], grads[1:], strict=True))
        return _heads_first(grads[0]), grad_key, grad_value

    @property
    def _lengths(self) -> tuple[torch.Tensor, torch.Tensor, int, int]:
        return self.query_offsets, self.key_offsets, self.max_queries, self.max_keys

    @property
    def _before(self) -> int:
        """Flash attention's window to the left of a query; -1 is unlimited."""
        return -1 if self.window is None else self.window - 1

    def _gathered(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Tokens first: the queries [T, H, D], and the keys and values of all chains, [m, H_kv, D]."""
        copies = [_tokens_first(tensor)[self.key_index] for tensor in (key, value)]
        if copies[0].shape[1] != query.shape[1] and not _takes_groups():
            repeats = query.shape[1] // copies[0].shape[1]
            copies = [tensor.repeat_interleave(repeats, dim=1) for tensor in copies]
        return _tokens_first(query), copies[0], copies[1]

    def _sum_copies(self, tensor: torch.Tensor, gradient: torch.Tensor) -> torch.Tensor:
        """The gradient of `tensor` [1, H_kv, T, D]: the sum over its copies in all branches, in fp32 at least."""
        total = empty_tokens_first(tensor, dtype=torch.promote_types(tensor.dtype, torch.float32)).zero_()
        gradient = gradient.to(total.dtype).unflatten(1, (tensor.shape[1], -1)).sum(dim=2)
        _tokens_first(total).index_add_(0, self.key_index, gradient)
        return total.to(tensor.dtype)


def _tokens_first(tensor: torch.Tensor) -> torch.Tensor:
    """[1, H, T, D] -> [T, H, D], a view."""
    return tensor[0].transpose(0, 1)


def _heads_first(tensor: torch.Tensor) -> torch.Tensor:
    """[T, H, D] -> [1, H, T, D], a view."""
    return tensor.transpose(0, 1)[None]


@cache
def check_alignment(device: torch.device, dtype: torch.dtype) -> None:
    """Checks two queries below a path of one token: only the second one may see the last of the three keys.

    Raises:
        RuntimeError: flash attention aligns its causal mask differently on this machine.
    """
    zeros = torch.zeros(3, 1, 64, dtype=dtype, device=device)
    value = torch.eye(3, 64, dtype=dtype, device=device)[:, None]
    lengths = (_offsets([2], device), _offsets([3], device), 2, 3)
    output, _ = _flash_forward(zeros[:2], zeros, value, lengths, None, -1)
    expected = [[0.5, 0.5, 0.0], [1 / 3, 1 / 3, 1 / 3]]
    if not np.allclose(output[:, 0, :3].float().cpu().numpy(), expected, atol=1e-2):
        raise RuntimeError(
            "Variable-length flash attention does not align its causal mask to the last key here: "
            "set tree_attention='path_gather'."
        )


def _offsets(lengths: list[int], device: torch.device) -> torch.Tensor:
    return torch.tensor([0, *np.cumsum(lengths).tolist()], dtype=torch.int32, device=device)


@cache
def _takes_groups() -> bool:
    """Whether torch accepts fewer heads of keys than of queries (from 2.13 on)."""
    from torch.nn.attention.varlen import varlen_attn

    return "enable_gqa" in inspect.signature(varlen_attn).parameters


def _flash_forward(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    lengths: tuple[torch.Tensor, torch.Tensor, int, int],
    scaling: float | None,
    before: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The output [T, H, D], and the log-sum-exps of the scores, [H, T]."""
    from torch.nn.attention.varlen import AuxRequest, varlen_attn

    grouping = {"enable_gqa": True} if query.shape[1] != key.shape[1] else {}
    return varlen_attn(
        query,
        key,
        value,
        *lengths,
        return_aux=AuxRequest(lse=True),
        scale=scaling,
        window_size=(before, 0),
        **grouping,
    )


def _flash_backward(
    grad_output: torch.Tensor,
    inputs: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    result: tuple[torch.Tensor, torch.Tensor],
    lengths: tuple[torch.Tensor, torch.Tensor, int, int],
    scaling: float | None,
    before: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """The gradients of `inputs`, as `varlen_attn`'s own backward pass computes them from its saved result."""
    # Without dropout the kernel draws no random numbers.
    state, unused = (grad_output.new_empty(size, dtype=torch.uint64) for size in (2, 0))
    return torch.ops.aten._flash_attention_backward(
        grad_output,
        *inputs,
        *result,
        *lengths,
        0.0,
        True,
        state,
        unused,
        scale=scaling,
        window_size_left=before,
        window_size_right=0,
    )
