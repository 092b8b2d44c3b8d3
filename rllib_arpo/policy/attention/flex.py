"""Tree attention by PyTorch's FlexAttention: one kernel call whose block mask says which tiles to skip.

The mask is made of `end` alone, tile by tile, so no [T, T] mask is ever held.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import torch

from rllib_arpo.policy.attention.chains import chains

#: Tokens of a tile, FlexAttention's default.
TILE = 128


@dataclass(frozen=True, slots=True)
class FlexTree:
    """The attention plan of one pass (`TreePlan`); `block_mask` is FlexAttention's `BlockMask`."""

    num_tokens: int
    dtype: torch.dtype
    block_mask: object

    @classmethod
    def plan(cls, ends: np.ndarray, dtype: torch.dtype, device: torch.device) -> FlexTree:
        for _ in chains(ends):  # Refuses ranges that are not nested.
            pass
        return cls(len(ends), dtype, _block_mask(ends, device))

    def attend(
        self, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, scaling: float | None
    ) -> torch.Tensor:
        grouped = query.shape[1] != key.shape[1]
        return _flex_attention(query.device.type)(
            query, key, value, block_mask=self.block_mask, scale=scaling, enable_gqa=grouped
        )


@cache
def _flex_attention(device_type: str):
    from torch.nn.attention.flex_attention import flex_attention

    # Without compilation it holds all scores; a CPU supports only that form, without a backward pass: tests/gpu checks
    # the gradients.
    return flex_attention if device_type == "cpu" else torch.compile(flex_attention, dynamic=True)


def tiles(ends: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Which tiles of queries and keys have pairs that attend.

    Args:
        ends: [T] int64.

    Returns:
        ([n, n] bool: all pairs of the tile, [n, n] bool: some of them but not all), queries first, n = ceil(T / TILE).
    """
    num_tokens = len(ends)
    starts = np.arange(0, num_tokens, TILE)
    stops = np.minimum(starts + TILE, num_tokens)
    lowest, highest = np.minimum.reduceat(ends, starts), np.maximum.reduceat(ends, starts)
    before = starts[None, :] < starts[:, None]
    same = starts[None, :] == starts[:, None]
    # A key tile before the query tile: all its tokens precede the queries, so only their ends matter.
    full = before & (lowest[None, :] >= stops[:, None])
    some = (before & (highest[None, :] > starts[:, None])) | same
    return full, some & ~full


def _block_mask(ends: np.ndarray, device: torch.device):
    from torch.nn.attention.flex_attention import BlockMask

    end = torch.from_numpy(ends).to(device)

    def attends(_batch, _head, query, key):
        return (key <= query) & (query < end[key])

    full, partial = tiles(ends)
    return BlockMask.from_kv_blocks(
        *_as_blocks(partial, device),
        *_as_blocks(full, device),
        BLOCK_SIZE=TILE,
        mask_mod=attends,
        seq_lengths=(len(ends), len(ends)),
    )


def _as_blocks(tile_mask: np.ndarray, device: torch.device) -> tuple[torch.Tensor, torch.Tensor]:
    """[n, n] bool -> FlexAttention's ([1, 1, n] number of key tiles, [1, 1, n, n] their indices first, then others)."""
    counts = tile_mask.sum(axis=1)
    order = np.argsort(~tile_mask, axis=1, kind="stable")
    return tuple(torch.from_numpy(array.astype(np.int32))[None, None].to(device) for array in (counts, order))
