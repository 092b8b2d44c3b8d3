"""Tree attention block by block: queries attend to keys and values gathered along their path.

Any run of consecutive tokens [a, b) attends only to the path above a and to itself. So the plan cuts a pass into such
blocks, at forks and within long chains; each block is one call of a fused kernel, with a mask if it is not plainly
causal. The backward pass gathers again: saved copies would grow with the number of branches.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F

from rllib_arpo.policy.attention.chains import Chain, Range, chains, depths, joined, last_tokens, tokens_of
from rllib_arpo.policy.attention.tree_operator import empty_tokens_first
from rllib_arpo.policy.upload import upload

#: Two neighbouring blocks are merged if that wastes at most this many masked query-key pairs: a call costs as much.
MAX_WASTED_PAIRS = 4096
#: Longest block below a path; this bounds the waste above the diagonal of a long chain.
MAX_BLOCK_TOKENS = 256
_NO_KEY = torch._C.DispatchKey.Undefined


@dataclass(frozen=True, slots=True)
class Block:
    """Consecutive query tokens and the keys that any of them attends to.

    Attributes:
        start, stop: the half-open range of the query tokens; n = stop - start.
        keys: half-open ranges of the key tokens, in increasing order, m tokens in all; the last one ends at `stop`.
        mask: [n, m], added to the scores: 0 where a query attends to a key, else -inf; None if the block is one chain
            from the root, which is plain causal attention.
    """

    start: int
    stop: int
    keys: tuple[Range, ...]
    mask: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class PathGather:
    """The attention plan of one pass of T tokens (`TreePlan`): its blocks cover [0, T) in order."""

    num_tokens: int
    dtype: torch.dtype
    blocks: tuple[Block, ...]

    @classmethod
    def plan(cls, ends: np.ndarray, dtype: torch.dtype, device: torch.device, window: int | None = None) -> PathGather:
        pieces = _merge([piece for chain in chains(ends) for piece in _cut(chain, window)])
        allowed = _Allowed(ends, None if window is None else depths(ends), window)
        return cls(len(ends), dtype, tuple(_block(piece, allowed, dtype, device) for piece in pieces))

    def forward(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float | None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        output = empty_tokens_first(query, value.shape[-1])
        log_sum_exps = []
        for block in self.blocks:
            rows = slice(block.start, block.stop)
            output[:, :, rows], log_sum_exp = _attend(
                query[:, :, rows], _gather(key, block), _gather(value, block), block.mask, scaling
            )
            log_sum_exps.append(log_sum_exp)
        return output, torch.cat(log_sum_exps, dim=2)

    def backward(
        self,
        grad_output: torch.Tensor,
        inputs: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
        result: tuple[torch.Tensor, torch.Tensor],
        scaling: float | None,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        (query, key, value), (output, log_sum_exp) = inputs, result
        # Many branches add to the gradient of a shared key, so the sum is at least fp32.
        sum_dtype = torch.promote_types(key.dtype, torch.float32)
        grad_query = empty_tokens_first(query)
        grad_key, grad_value = (empty_tokens_first(like, dtype=sum_dtype).zero_() for like in (key, value))
        for block in self.blocks:
            rows = slice(block.start, block.stop)
            of_block = (query[:, :, rows], _gather(key, block), _gather(value, block))
            attended = (output[:, :, rows], log_sum_exp[:, :, rows].contiguous())
            grads = _attend_backward(grad_output[:, :, rows], of_block, attended, block.mask, scaling)
            grad_query[:, :, rows] = grads[0]
            _scatter_add(grad_key, grads[1], block)
            _scatter_add(grad_value, grads[2], block)
        return grad_query, grad_key.to(key.dtype), grad_value.to(value.dtype)


@dataclass(frozen=True, slots=True)
class _Allowed:
    """Which keys a query attends to: its ancestors and itself, and of these with a window the last `window`."""

    ends: np.ndarray
    depths: np.ndarray | None
    window: int | None

    def mask(self, queries: np.ndarray, keys: np.ndarray) -> np.ndarray:
        """[n, m] bool."""
        allowed = (keys[None, :] <= queries[:, None]) & (queries[:, None] < self.ends[keys][None, :])
        if self.depths is None:
            return allowed
        return allowed & (self.depths[queries][:, None] - self.depths[keys][None, :] < self.window)


def _cut(chain: Chain, window: int | None) -> Iterator[Chain]:
    """Cuts a long chain; one from the root stays whole without a window, since its attention is plainly causal."""
    if not chain.path and window is None:
        yield chain
        return
    for start in range(chain.start, chain.stop, MAX_BLOCK_TOKENS):
        above = ((chain.start, start),) if start > chain.start else ()
        yield Chain(start, min(start + MAX_BLOCK_TOKENS, chain.stop), chain.path + above)


def _merge(pieces: list[Chain]) -> list[Chain]:
    """Joins neighbours while masking the needless pairs costs less than another call."""
    merged: list[Chain] = []
    for piece in pieces:
        if merged and _wasted_pairs(merged[-1], piece) <= MAX_WASTED_PAIRS:
            merged[-1] = Chain(merged[-1].start, piece.stop, merged[-1].path)
        else:
            merged.append(piece)
    return merged


def _wasted_pairs(left: Chain, right: Chain) -> int:
    """(n + m)(p + n + m) - n(p + n) - m(q + m): the pairs that joining n tokens below p with m tokens below q adds."""
    n, m = left.stop - left.start, right.stop - right.start
    return m * (2 * n + left.path_length - right.path_length)


def _block(piece: Chain, allowed: _Allowed, dtype: torch.dtype, device: torch.device) -> Block:
    ranges = joined((*piece.path, (piece.start, piece.stop)))
    queries = np.arange(piece.start, piece.stop)
    keys = tokens_of(ranges)
    attended = allowed.mask(queries, keys)
    if not piece.path and attended.sum() == len(queries) * (len(queries) + 1) // 2:
        return Block(piece.start, piece.stop, ranges, None)
    first = int(attended.any(axis=0).argmax())
    mask = torch.zeros((len(queries), len(keys) - first), dtype=dtype, device=device)
    mask.masked_fill_(upload(~attended[:, first:], device), -torch.inf)
    return Block(piece.start, piece.stop, last_tokens(ranges, len(keys) - first), mask)


def _gather(tensor: torch.Tensor, block: Block) -> torch.Tensor:
    """[1, H, T, D] -> [1, H, m, D]: the key tokens of the block; a view if they are contiguous."""
    slices = [tensor[:, :, start:stop] for start, stop in block.keys]
    return slices[0] if len(slices) == 1 else torch.cat(slices, dim=2)


def _scatter_add(total: torch.Tensor, part: torch.Tensor, block: Block) -> None:
    """Adds [1, H, m, D] to the key tokens of the block in [1, H, T, D], in place."""
    offset = 0
    for start, stop in block.keys:
        total[:, :, start:stop] += part[:, :, offset : offset + stop - start]
        offset += stop - start


def _gives_log_sum_exps(device: torch.device) -> bool:
    return device.type == "cpu"


def _attend(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, scaling: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Grouped-query attention of [1, H, n, D] to [1, H_kv, m, D]; plainly causal (n = m) if `mask` is None.

    Returns:
        the output [1, H, n, D], and the log-sum-exp [1, H, n] of the scores. Only the CPU sets its values; elsewhere
        the fused kernel depends on the machine, and `_attend_backward` ignores them.
    """
    if _gives_log_sum_exps(query.device):
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, is_causal=mask is None, attn_mask=mask, scale=scaling
        )
    log_sum_exp = query.new_empty(query.shape[:3], dtype=torch.promote_types(query.dtype, torch.float32))
    return _sdpa(query, key, value, mask, scaling), log_sum_exp


def _attend_backward(
    grad_output: torch.Tensor,
    inputs: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    result: tuple[torch.Tensor, torch.Tensor],
    mask: torch.Tensor | None,
    scaling: float | None,
) -> tuple[torch.Tensor, ...]:
    """Gradients with respect to `inputs`: query, key and value. `result` is the return value of `_attend`."""
    if _gives_log_sum_exps(grad_output.device):
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            grad_output, *inputs, *result, 0.0, mask is None, attn_mask=mask, scale=scaling
        )
    query, key, value = (tensor.detach().requires_grad_() for tensor in inputs)
    # An operator's own code runs below autograd, which would record nothing here.
    included, nothing = torch._C._dispatch_tls_local_include_set(), torch._C.DispatchKeySet(_NO_KEY)
    with torch._C._ForceDispatchKeyGuard(included, nothing), torch.enable_grad():
        output = _sdpa(query, key, value, mask, scaling)
        return torch.autograd.grad(output, (query, key, value), grad_output)


def _sdpa(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor | None, scaling: float | None
) -> torch.Tensor:
    grouped = query.shape[1] != key.shape[1]
    if grouped and mask is not None:
        # On CUDA, grouped heads together with a mask leave only the unfused kernel.
        repeats = query.shape[1] // key.shape[1]
        key, value, grouped = key.repeat_interleave(repeats, 1), value.repeat_interleave(repeats, 1), False
    with torch.autocast(query.device.type, enabled=False):
        return F.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, is_causal=mask is None, scale=scaling, enable_gqa=grouped
        )
