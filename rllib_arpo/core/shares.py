"""Cuts packed trees into parts, and shares the parts out among learners so that all have the same work.

A part holds the whole root paths of consecutive leaves. It trains on the tokens that no earlier part of its tree holds;
the others are its context. So the gradients of a tree's parts add up to the gradient of the tree.
"""

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from rllib_arpo.core.packing import PackedTree

#: Steps of the binary search in `share_out`, which looks for the smallest largest share.
_HALVINGS = 10


@dataclass(frozen=True, slots=True, order=True)
class Part:
    """The leaves `first` <= leaf < `last` of one tree, in the order in which they are packed."""

    tree: int
    first: int
    last: int


class LeafWork:
    """What the parts of a packed tree with L leaves cost.

    A token costs 1 in the layers, and `1 / pairs_per_token` for each token that it attends to. Each part that holds a
    token computes it again, so it costs again.

    Attributes:
        tips: [L] int64, the last token of each leaf.
        path_tokens: [L] int64, the tokens of each leaf's whole path.
    """

    def __init__(self, packed: PackedTree, pairs_per_token: float):
        self.tips = _tips(packed)
        self.path_tokens = packed.position_ids[self.tips] + 1
        self._of_path = self.path_tokens + self.path_tokens * (self.path_tokens + 1) / 2 / pairs_per_token
        self._up_to = np.cumsum(1 + (packed.position_ids + 1) / pairs_per_token)[self.tips]

    def work(self, part: Part) -> float:
        """The work of a part."""
        return float(self._of_path[part.first] + self._up_to[part.last - 1] - self._up_to[part.first])

    def begin_within(self, part: Part, work: float) -> Part:
        """As many of the part's first leaves as `work` allows, perhaps none."""
        limit = work - self._of_path[part.first] + self._up_to[part.first]
        leaves = np.searchsorted(self._up_to[part.first : part.last], limit, side="right")
        return replace(part, last=part.first + int(leaves))


def cut_by_tokens(packed: PackedTree, max_tokens: int, tree: int = 0) -> list[Part]:
    """Cuts one tree into as few parts of at most `max_tokens` tokens as its order of leaves allows.

    Raises:
        ValueError: one path alone is longer than `max_tokens`.
    """
    leaves = LeafWork(packed, np.inf)
    if (longest := leaves.path_tokens.max()) > max_tokens:
        raise ValueError(
            f"a trajectory of {longest} tokens, its prompt included, does not fit in one pass: "
            f"max_tokens_per_pass is {max_tokens}"
        )
    parts, rest = [], Part(tree, 0, len(leaves.tips))
    while rest.first < rest.last:
        parts.append(leaves.begin_within(rest, max_tokens))
        rest = replace(rest, first=parts[-1].last)
    return parts


def take(packed: PackedTree, part: Part) -> PackedTree:
    """The tokens of a part, with the loss on those that no earlier part of the tree holds."""
    tokens, tips = np.arange(packed.num_tokens), _tips(packed)
    if part.first == 0 and part.last == len(tips):
        return packed
    first, last, before = tips[part.first], tips[part.last - 1], tips[part.first - 1] if part.first else -1
    keep = (tokens <= last) & ((tokens > before) | (packed.end > first))
    kept_before = np.concatenate([[0], np.cumsum(keep)])
    taken = PackedTree(**{field.name: getattr(packed, field.name)[keep] for field in fields(PackedTree)})
    return replace(
        taken,
        parent=np.where(taken.parent < 0, -1, kept_before[taken.parent]),
        end=kept_before[taken.end],
        loss_mask=taken.loss_mask & (tokens > before)[keep],
    )


def _tips(packed: PackedTree) -> np.ndarray:
    return np.flatnonzero(packed.end == np.arange(packed.num_tokens) + 1)


def share_out(
    trees: Mapping[int, PackedTree], parts: Sequence[Part], num_shares: int, pairs_per_token: float
) -> list[list[Part]]:
    """Shares parts out among learners; cuts them further where that makes the largest share smaller.

    Every learner computes this, and takes its own share. Cutting costs work, since several learners then compute the
    tokens that their parts have in common; the shares count it.

    Args:
        trees: the packed trees by the number with which `parts` name them.
        parts: all parts to share out.
        num_shares: the number of learners.
        pairs_per_token: see `LeafWork`.

    Returns:
        the parts of each learner.
    """
    if num_shares == 1:
        return [list(parts)]
    leaves = {tree: LeafWork(trees[tree], pairs_per_token) for tree in {part.tree for part in parts}}
    shares = _fill(parts, leaves, num_shares, np.inf)
    assert shares is not None
    work = [sum(leaves[part.tree].work(part) for part in share) for share in shares]
    low, high = sum(work) / num_shares, max(work)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if (tried := _fill(parts, leaves, num_shares, middle)) is None:
            low = middle
        else:
            shares, high = tried, middle
    return shares


def _fill(parts: Sequence[Part], leaves: dict[int, LeafWork], num_shares: int, most: float) -> list[list[Part]] | None:
    """Shares parts out, largest first, so that no share has more work than `most`; None if that fails.

    A part goes to the share with the least work. If it does not fit there, the share takes as many of its leaves as it
    can, and the rest of the part is shared out like the others.
    """
    shares: list[list[Part]] = [[] for _ in range(num_shares)]
    work = [0.0] * num_shares
    waiting = [(-leaves[part.tree].work(part), part) for part in parts]
    heapq.heapify(waiting)
    while waiting:
        _, part = heapq.heappop(waiting)
        share = min(range(num_shares), key=work.__getitem__)
        taken = leaves[part.tree].begin_within(part, most - work[share])
        if taken.first == taken.last:
            return None
        shares[share].append(taken)
        work[share] += leaves[part.tree].work(taken)
        if taken.last < part.last:
            rest = replace(part, first=taken.last)
            heapq.heappush(waiting, (-leaves[part.tree].work(rest), rest))
    return shares
