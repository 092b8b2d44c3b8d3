"""Splits a packed pass into chains, from which every kernel of tree attention starts.

Layout (see `core/packing.py`): the tokens of a tree lie in depth-first order, token t attends to s iff s <= t < end[s];
several trees may follow each other in one pass. The tokens of a chain attend only to the path above it and, causally,
to each other.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

#: A half-open range of tokens.
Range = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Chain:
    """Consecutive tokens without a fork between them.

    Attributes:
        start, stop: the half-open range of the tokens.
        path: half-open ranges of its ancestors, from the root down.
    """

    start: int
    stop: int
    path: tuple[Range, ...]

    @property
    def path_length(self) -> int:
        return sum(stop - start for start, stop in self.path)


def chains(ends: np.ndarray) -> Iterator[Chain]:
    """Yields the maximal chains of a pass in order.

    Args:
        ends: [T] int64; token t attends to s iff s <= t < ends[s].

    Raises:
        ValueError: the ranges [t, ends[t]) are not nested, so `ends` describes no tree.
    """
    num_tokens = len(ends)
    if num_tokens == 0:
        return
    # Token t continues the chain of t - 1 iff t is its only child: the same later tokens then attend to both.
    starts = np.flatnonzero(np.concatenate(([True], ends[1:] != ends[:-1])))
    ancestors: list[Range] = []
    for start, stop in zip(starts.tolist(), [*starts[1:].tolist(), num_tokens], strict=True):
        while ancestors and ends[ancestors[-1][0]] <= start:
            ancestors.pop()
        limit = ends[ancestors[-1][0]] if ancestors else num_tokens
        if not stop <= ends[start] <= limit:
            raise ValueError(f"end[{start}] = {ends[start]} is outside of [{stop}, {limit}]: this is not a packed tree")
        yield Chain(start, stop, tuple(ancestors))
        ancestors.append((start, stop))


def depths(ends: np.ndarray) -> np.ndarray:
    """[T] int64, the number of ancestors of each token of a pass."""
    found = np.empty(len(ends), np.int64)
    for chain in chains(ends):
        found[chain.start : chain.stop] = chain.path_length + np.arange(chain.stop - chain.start)
    return found


def last_tokens(ranges: tuple[Range, ...], count: int) -> tuple[Range, ...]:
    """The last `count` tokens of some ranges."""
    found: list[Range] = []
    for start, stop in reversed(ranges):
        if count <= 0:
            break
        found.append((max(start, stop - count), stop))
        count -= stop - start
    return tuple(reversed(found))


def tokens_of(ranges: Sequence[Range]) -> np.ndarray:
    """[m] int64: the tokens of some ranges, one range after the other."""
    return np.concatenate([np.arange(start, stop) for start, stop in ranges]) if ranges else np.empty(0, np.int64)


def joined(ranges: tuple[Range, ...]) -> tuple[Range, ...]:
    """The same tokens in as few ranges as possible."""
    result: list[Range] = []
    for start, stop in ranges:
        if result and result[-1][1] == start:
            result[-1] = (result[-1][0], stop)
        else:
            result.append((start, stop))
    return tuple(result)
