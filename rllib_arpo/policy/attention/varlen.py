"""Tree attention as one or two calls of variable-length flash attention: each chain is a sequence.

In the first call the queries of a chain attend to the path above it and, causally, to itself; flash attention's causal
mask is aligned to the last query and the last key (bottom right). Keys that many chains share, such as a prompt's, are
left out there: in a second call, without a mask, all tokens below a cut attend to the keys above it. The two results
are merged by their log-sum-exps. `check_here` verifies all of this on the machine.

Both backward calls get the merged output and log-sum-exps, so each gives its keys' part of the gradients. They gather
keys and values again: saved copies would grow with the number of branches.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from torch import Tensor

from rllib_arpo.policy.attention.chains import Chain, Range, chains, joined, last_tokens, tokens_of
from rllib_arpo.policy.attention.path_gather import PathGather
from rllib_arpo.policy.attention.tree_operator import empty_tokens_first
from rllib_arpo.policy.upload import upload

#: Largest relative error of `check_here`; half precision gives 1e-2, a wrong mask more than 0.2.
_CHECK_TOLERANCE = 5e-2


@dataclass(frozen=True, slots=True)
class FlashCall:
    """One call of flash attention for S sequences, whose queries are the T tokens of a pass in order.

    A sequence without keys gives the output 0. The keys of a sequence without queries are skipped.

    Attributes:
        key_index: [m] int64, the key tokens of all sequences, one sequence after the other; None: all T in order.
        query_offsets, key_offsets: [S + 1] int32, where each sequence's queries and keys begin.
        max_queries, max_keys: the most that any sequence has.
        causal: whether the last query attends to all keys of its sequence, and each query before it to one fewer.
        window: how many keys a query of a causal call attends to at most; None: all.
    """

    key_index: Tensor | None
    query_offsets: Tensor
    key_offsets: Tensor
    max_queries: int
    max_keys: int
    causal: bool = True
    window: int | None = None

    @property
    def lengths(self) -> tuple[Tensor, Tensor, int, int]:
        return self.query_offsets, self.key_offsets, self.max_queries, self.max_keys

    @property
    def reach(self) -> dict[str, int]:
        """How far a query sees to its left and right in flash attention's terms; -1 is unlimited."""
        left = -1 if self.window is None else self.window - 1
        return {"window_size_left": left, "window_size_right": 0 if self.causal else -1}

    def forward(self, query: Tensor, key: Tensor, value: Tensor, scaling: float | None) -> tuple[Tensor, Tensor]:
        """[T, H, D] queries, [T, H_kv, D] keys and values -> [T, H, D], and the log-sum-exps [H, T]."""
        return _flash_forward(self, query, self._gather(key), self._gather(value), scaling)

    def backward(
        self, grad_output: Tensor, inputs: tuple[Tensor, ...], result: tuple[Tensor, Tensor], scaling: float | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """The gradients of the queries, and of the gathered keys and values; `result` is that of all calls."""
        query, key, value = inputs
        return _flash_backward(self, grad_output, (query, self._gather(key), self._gather(value)), result, scaling)

    def add_to(self, total: Tensor, gradient: Tensor) -> None:
        """Adds the gradient of the gathered keys or values to that of all T, in place."""
        if self.key_index is None:
            total += gradient
        else:
            total.index_add_(0, self.key_index, gradient.to(total.dtype))

    def _gather(self, tensor: Tensor) -> Tensor:
        return tensor if self.key_index is None else tensor[self.key_index]


@dataclass(frozen=True, slots=True)
class VarlenTree:
    """The attention plan of one pass (`TreePlan`).

    Attributes:
        calls: one for the chains and, if there are cuts, one for the tokens below them.
    """

    num_tokens: int
    dtype: torch.dtype
    calls: tuple[FlashCall, ...]

    @classmethod
    def plan(cls, ends: np.ndarray, dtype: torch.dtype, device: torch.device, window: int | None = None) -> VarlenTree:
        check_here(device, dtype)
        return cls._plan(ends, dtype, device, window)

    @classmethod
    def _plan(cls, ends: np.ndarray, dtype: torch.dtype, device: torch.device, window: int | None) -> VarlenTree:
        found = list(chains(ends))
        cuts = _cuts(found, ends) if window is None else []
        calls = [_call_of_chains(found, cuts, window, device)]
        if cuts:
            calls.append(_call_below_cuts(cuts, len(ends), device))
        return cls(len(ends), dtype, tuple(calls))

    def forward(self, query: Tensor, key: Tensor, value: Tensor, scaling: float | None) -> tuple[Tensor, Tensor]:
        inputs = (_tokens_first(query), _tokens_first(key), _tokens_first(value))
        output, log_sum_exp = self.calls[0].forward(*inputs, scaling)
        for call in self.calls[1:]:
            log_sum_exp = _merge(output, log_sum_exp, *call.forward(*inputs, scaling))
        return _heads_first(output), log_sum_exp[None]

    def backward(
        self,
        grad_output: Tensor,
        inputs: tuple[Tensor, Tensor, Tensor],
        result: tuple[Tensor, Tensor],
        scaling: float | None,
    ) -> tuple[Tensor, Tensor, Tensor]:
        saved, tokens = (_tokens_first(result[0]), result[1][0]), tuple(map(_tokens_first, inputs))
        grads = [call.backward(_tokens_first(grad_output), tokens, saved, scaling) for call in self.calls]
        grad_query = grads[0][0] if len(grads) == 1 else grads[0][0] + grads[1][0]
        # Many branches add to the gradient of a shared key, so the sum is at least fp32.
        sums = [empty_tokens_first(like, dtype=torch.promote_types(like.dtype, torch.float32)) for like in inputs[1:]]
        for i, total in enumerate(sums, start=1):
            total.zero_()
            for call, of_call in zip(self.calls, grads, strict=True):
                call.add_to(_tokens_first(total), of_call[i])
        grad_key, grad_value = (total.to(like.dtype) for total, like in zip(sums, inputs[1:], strict=True))
        return _heads_first(grad_query), grad_key, grad_value


@dataclass(frozen=True, slots=True)
class Cut:
    """Tokens [start, stop) that attend to all keys in `above`, the path through the node at the cut."""

    start: int
    stop: int
    above: tuple[Range, ...]


def _cuts(found: Sequence[Chain], ends: np.ndarray) -> list[Cut]:
    """The cuts that save most. A cut saves keys that are no longer gathered, and costs a merge for each token below it.

    No cut lies below another one. Below a node with m keys on its path, its own included, n chains save (n - 1) m.
    """
    rows = {chain.start: row for row, chain in enumerate(found)}
    parents = [rows[chain.path[-1][0]] if chain.path else -1 for chain in found]
    below, best, is_cut = [0] * (len(found) + 1), [0] * (len(found) + 1), [False] * len(found)
    for row in reversed(range(len(found))):
        chain = found[row]
        num_keys, num_queries = chain.path_length + chain.stop - chain.start, int(ends[chain.start]) - chain.stop
        saved = (below[row] - 1) * num_keys - num_queries
        is_cut[row], best[row] = saved > best[row], max(saved, best[row])
        below[parents[row]] += below[row] + 1
        best[parents[row]] += best[row]
    cuts: list[Cut] = []
    for chain, cut in zip(found, is_cut, strict=True):
        if cut and (not cuts or chain.start >= cuts[-1].stop):
            cuts.append(Cut(chain.stop, int(ends[chain.start]), (*chain.path, (chain.start, chain.stop))))
    return cuts


def _call_of_chains(found: Sequence[Chain], cuts: Sequence[Cut], window: int | None, device: torch.device) -> FlashCall:
    """Each chain attends to itself and to its path, as far as no cut takes it and the window reaches."""
    keys: list[tuple[Range, ...]] = []
    following = iter(cuts)
    cut = next(following, None)
    for chain in found:
        while cut is not None and chain.start >= cut.stop:
            cut = next(following, None)
        path = chain.path[len(cut.above) :] if cut is not None and chain.start >= cut.start else chain.path
        path = path if window is None else last_tokens(path, window - 1)
        keys.append((*path, (chain.start, chain.stop)))
    index = np.concatenate([tokens_of(ranges) for ranges in keys])
    sizes = [(chain.stop - chain.start, _count(ranges)) for chain, ranges in zip(found, keys, strict=True)]
    gathers = any(queries != num_keys for queries, num_keys in sizes)
    return _flash_call(sizes, index if gathers else None, device, window=window)


def _call_below_cuts(cuts: Sequence[Cut], num_tokens: int, device: torch.device) -> FlashCall:
    """All tokens below a cut attend to the keys above it; no keys are copied if they lie in order already."""
    keys = [joined(cut.above) for cut in cuts]
    in_order = all(len(ranges) == 1 for ranges in keys)
    in_order = in_order and all(left[0][1] <= right[0][0] for left, right in itertools.pairwise(keys))
    sizes: list[tuple[int, int]] = []
    query = key = 0
    for cut, ranges in zip(cuts, keys, strict=True):
        sizes += [(cut.start - query, 0), (0, ranges[0][0] - key if in_order else 0)]
        sizes.append((cut.stop - cut.start, _count(ranges)))
        query, key = cut.stop, ranges[-1][1]
    sizes += [(num_tokens - query, 0), (0, num_tokens - key if in_order else 0)]
    index = None if in_order else np.concatenate([tokens_of(ranges) for ranges in keys])
    return _flash_call([size for size in sizes if any(size)], index, device, causal=False)


def _flash_call(
    sizes: Sequence[tuple[int, int]],
    index: np.ndarray | None,
    device: torch.device,
    *,
    causal: bool = True,
    window: int | None = None,
) -> FlashCall:
    """`sizes` are the numbers of queries and of keys of each sequence."""
    lengths = np.array(sizes, np.int32)
    offsets = np.concatenate([np.zeros((1, 2), np.int32), lengths.cumsum(axis=0, dtype=np.int32)])
    max_queries, max_keys = lengths.max(axis=0).tolist()
    of_queries, of_keys = (upload(np.ascontiguousarray(column), device) for column in offsets.T)
    return FlashCall(
        None if index is None else upload(index, device), of_queries, of_keys, max_queries, max_keys, causal, window
    )


def _count(ranges: Sequence[Range]) -> int:
    return sum(stop - start for start, stop in ranges)


def _merge(output: Tensor, log_sum_exp: Tensor, more: Tensor, of_more: Tensor) -> Tensor:
    """Adds the result for other keys to `output`, [T, H, D], in place; returns the log-sum-exps for all, [H, T]."""
    of_more = of_more.masked_fill(of_more == torch.inf, -torch.inf)  # Flash attention's value for no keys is inf.
    total = torch.logaddexp(log_sum_exp, of_more)
    shares = [(part - total).exp().t()[:, :, None] for part in (log_sum_exp, of_more)]
    output.mul_(shares[0]).addcmul_(more, shares[1])
    return total


def _tokens_first(tensor: Tensor) -> Tensor:
    """[1, H, T, D] -> [T, H, D], a view."""
    return tensor[0].transpose(0, 1)


def _heads_first(tensor: Tensor) -> Tensor:
    """[T, H, D] -> [1, H, T, D], a view."""
    return tensor.transpose(0, 1)[None]


@cache
def check_here(device: torch.device, dtype: torch.dtype) -> None:
    """Compares a small pass with `PathGather` in fp32: two trees with a cut each, paths below one, and grouped heads.

    Raises:
        RuntimeError: output or gradients differ, so flash attention works differently on this machine.
    """
    ends = np.repeat([20, 16, 14, 16, 18, 20, 29, 28, 29], [9, 3, 2, 2, 2, 2, 7, 1, 1])
    generator = torch.Generator().manual_seed(0)
    draws = [torch.randn(1, heads, len(ends), 64, generator=generator).to(device, dtype) for heads in (2, 1, 1, 2)]
    found, wide = [], torch.promote_types(dtype, torch.float32)
    for plan in (VarlenTree._plan(ends, dtype, device, None), PathGather.plan(ends, wide, device)):
        query, key, value, grad = (tensor.to(plan.dtype) for tensor in draws)
        result = plan.forward(query, key, value, None)
        found.append((result[0], *plan.backward(grad, (query, key, value), result, None)))
    errors = [((got - want).norm() / want.norm()).item() for got, want in zip(*found, strict=True)]
    if not max(errors) <= _CHECK_TOLERANCE:
        raise RuntimeError(
            f"Variable-length flash attention is wrong by {max(errors):.2g} on a small tree here: "
            "set tree_attention='path_gather'."
        )


def _flash_forward(
    call: FlashCall, query: Tensor, key: Tensor, value: Tensor, scaling: float | None
) -> tuple[Tensor, Tensor]:
    """torch's own operator, since `varlen_attn` of torch 2.11 takes no fewer heads of keys than of queries."""
    return torch.ops.aten._flash_attention_forward(
        query, key, value, *call.lengths, 0.0, call.causal, False, scale=scaling, **call.reach
    )[:2]


def _flash_backward(
    call: FlashCall,
    grad_output: Tensor,
    inputs: tuple[Tensor, Tensor, Tensor],
    result: tuple[Tensor, Tensor],
    scaling: float | None,
) -> tuple[Tensor, Tensor, Tensor]:
    # Without dropout the kernel draws no random numbers.
    state, unused = (grad_output.new_empty(size, dtype=torch.uint64) for size in (2, 0))
    return torch.ops.aten._flash_attention_backward(
        grad_output, *inputs, *result, *call.lengths, 0.0, call.causal, state, unused, scale=scaling, **call.reach
    )
