"""Where the attention of a packed pass is computed: its blocks, planned once and used by every layer.

Layout (see `core/packing.py`): the tokens of a tree lie in depth-first order, token t attends to s iff s <= t < end[s];
several trees may follow each other in one pass. Any run of consecutive tokens [a, b) attends to nothing but the path
above a and itself. So a pass is cut into such blocks, at forks and within long chains.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch

#: Two neighbouring blocks are merged if that wastes at most so many masked query-key pairs: what one more call costs.
MAX_WASTED_PAIRS = 4096
#: A block below a path is at most so long, which bounds the waste above the diagonal of a long chain.
MAX_BLOCK_TOKENS = 256


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
    keys: tuple[tuple[int, int], ...]
    mask: torch.Tensor | None


@dataclass(frozen=True, slots=True)
class TreeSpec:
    """The attention plan of one pass of T tokens.

    Attributes:
        num_tokens: T.
        dtype: in which attention is computed.
        blocks: cover [0, T) in order.
    """

    num_tokens: int
    dtype: torch.dtype
    blocks: tuple[Block, ...]


@dataclass(frozen=True, slots=True)
class _Piece:
    """A block in the making: a part of a chain with the ranges of its ancestors."""

    start: int
    stop: int
    path: tuple[tuple[int, int], ...]

    @property
    def path_length(self) -> int:
        return sum(stop - start for start, stop in self.path)


def tree_spec(end: torch.Tensor, dtype: torch.dtype = torch.float32) -> TreeSpec:
    """Plans the attention of a pass.

    Args:
        end: [T] integers; token t attends to s iff s <= t < end[s].
        dtype: of the attention, from `attention_dtype`.

    Returns:
        The plan, with its masks on the device of `end`.

    Raises:
        ValueError: the ranges [t, end[t]) are not nested, so `end` describes no tree.
    """
    ends = end.detach().cpu().numpy().astype(np.int64)
    pieces = _merge([piece for chain in _chains(ends) for piece in _cut(chain)])
    return TreeSpec(len(ends), dtype, tuple(_block(piece, ends, dtype, end.device) for piece in pieces))


def _chains(ends: np.ndarray) -> Iterator[_Piece]:
    """Yields the maximal chains (runs of tokens without a fork) in order, each with the ranges of its ancestors."""
    num_tokens = len(ends)
    if num_tokens == 0:
        return
    # Token t continues the chain of t - 1 iff it is its only child: then both are attended to by the same tokens.
    starts = np.flatnonzero(np.concatenate(([True], ends[1:] != ends[:-1])))
    ancestors: list[tuple[int, int]] = []
    for start, stop in zip(starts.tolist(), [*starts[1:].tolist(), num_tokens], strict=True):
        while ancestors and ends[ancestors[-1][0]] <= start:
            ancestors.pop()
        limit = ends[ancestors[-1][0]] if ancestors else num_tokens
        if not stop <= ends[start] <= limit:
            raise ValueError(f"end[{start}] = {ends[start]} is outside of [{stop}, {limit}]: this is not a packed tree")
        yield _Piece(start, stop, tuple(ancestors))
        ancestors.append((start, stop))


def _cut(chain: _Piece) -> Iterator[_Piece]:
    """Cuts a long chain below a path; a chain from the root stays whole, its attention is plainly causal."""
    if not chain.path:
        yield chain
        return
    for start in range(chain.start, chain.stop, MAX_BLOCK_TOKENS):
        above = ((chain.start, start),) if start > chain.start else ()
        yield _Piece(start, min(start + MAX_BLOCK_TOKENS, chain.stop), chain.path + above)


def _merge(pieces: list[_Piece]) -> list[_Piece]:
    """Joins neighbours while masking the needless pairs costs less than another call."""
    merged: list[_Piece] = []
    for piece in pieces:
        if merged and _wasted_pairs(merged[-1], piece) <= MAX_WASTED_PAIRS:
            merged[-1] = _Piece(merged[-1].start, piece.stop, merged[-1].path)
        else:
            merged.append(piece)
    return merged


def _wasted_pairs(left: _Piece, right: _Piece) -> int:
    """(n + m)(p + n + m) - n(p + n) - m(q + m): the pairs that joining n tokens below p with m tokens below q adds."""
    n, m = left.stop - left.start, right.stop - right.start
    return m * (2 * n + left.path_length - right.path_length)


def _block(piece: _Piece, ends: np.ndarray, dtype: torch.dtype, device: torch.device) -> Block:
    ranges: list[tuple[int, int]] = []
    for start, stop in (*piece.path, (piece.start, piece.stop)):
        if ranges and ranges[-1][1] == start:
            ranges[-1] = (ranges[-1][0], stop)
        else:
            ranges.append((start, stop))
    queries = np.arange(piece.start, piece.stop)
    keys = np.concatenate([np.arange(start, stop) for start, stop in ranges])
    if not piece.path and (ends[keys] >= piece.stop).all():
        return Block(piece.start, piece.stop, tuple(ranges), None)
    allowed = (keys[None, :] <= queries[:, None]) & (queries[:, None] < ends[keys][None, :])
    mask = torch.zeros(allowed.shape, dtype=dtype, device=device)
    mask.masked_fill_(torch.from_numpy(~allowed).to(device), -torch.inf)
    return Block(piece.start, piece.stop, tuple(ranges), mask)
