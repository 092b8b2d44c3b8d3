"""Packs trees into flat arrays: every token once, depth first, prompt first.

Legend: `T` packed tokens, `N` nodes. Token t attends to s if and only if `s <= t < end[s]`: the tokens below a token
follow it without a gap, so an ancestor's subtree is a half-open range that starts at the ancestor.
"""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from rllib_arpo.core.advantages import NodeAttribution
from rllib_arpo.core.entropy import turn_entropies
from rllib_arpo.core.tree import QuestionTree, TreeLayout, known_beginnings


@dataclass(frozen=True, slots=True)
class PackedTree:
    """One or more packed trees, arrays of length T each. Field names are the learner's column names.

    Attributes:
        token_ids: int64.
        position_ids: int64, depth of the token on its path, in tokens; the prompt starts at 0.
        parent: int64, index of the token that the model read just before this one, from which it predicts it; -1: none,
            at the start of a prompt or of a new context that shares no beginning with its path.
        end: int64, one past the last token below it.
        loss_mask: bool, whether the model generated the token and this pass trains on it.
        behavior_log_probs: float32, the engine's; 0 where the token was not generated.
        behavior_entropies: float32 nats, the engine's; 0 where the token was not generated, and everywhere unless
            `pack_tree` fills them in (`with_entropies`).
        a_pos, a_neg, weight: float64, `NodeAttribution` of the token's node; 0 where the token was not generated.
            The learner casts them to the type of its log-probs.
    """

    token_ids: np.ndarray
    position_ids: np.ndarray
    parent: np.ndarray
    end: np.ndarray
    loss_mask: np.ndarray
    behavior_log_probs: np.ndarray
    behavior_entropies: np.ndarray
    a_pos: np.ndarray
    a_neg: np.ndarray
    weight: np.ndarray

    @property
    def num_tokens(self) -> int:
        """T."""
        return len(self.token_ids)

    @property
    def num_loss_tokens(self) -> int:
        """K, the tokens in the loss mask."""
        return int(self.loss_mask.sum())


def _is_read(tree: QuestionTree, layout: TreeLayout) -> np.ndarray:
    """[N] bool: whether some token below a node is generated, and thus attends to the node's tool response."""
    needed = np.zeros(len(layout.nodes) + 1, dtype=bool)
    for i in reversed(range(len(layout.nodes))):
        needed[layout.nodes[i].parent] |= needed[i] or len(tree.turn_of(layout.nodes[i]).token_ids) > 0
    return needed[:-1]


def untrained_chain(num_tokens: int) -> PackedTree:
    """A chain of `num_tokens` zeros outside the loss."""
    positions = np.arange(num_tokens, dtype=np.int64)
    return PackedTree(
        token_ids=np.zeros(num_tokens, dtype=np.int64),
        position_ids=positions,
        parent=positions - 1,
        end=np.full(num_tokens, num_tokens, dtype=np.int64),
        loss_mask=np.zeros(num_tokens, dtype=bool),
        behavior_log_probs=np.zeros(num_tokens, dtype=np.float32),
        behavior_entropies=np.zeros(num_tokens, dtype=np.float32),
        a_pos=np.zeros(num_tokens),
        a_neg=np.zeros(num_tokens),
        weight=np.zeros(num_tokens),
    )


def pack_tree(
    tree: QuestionTree, layout: TreeLayout, attribution: NodeAttribution, *, with_entropies: bool = False
) -> PackedTree:
    """Lays out the prompt and the turns of `layout` with their attribution.

    The tool response after a turn belongs to the turn's node, outside the loss. The first token of a branch has the
    last token of its parent node as `parent`. A tool response below which nothing is generated is dropped. If a new
    context (`Turn.new_context`) begins like its path, the two share that beginning.

    Args:
        tree, layout: the question and its depth-first order.
        attribution: [N], in the order of `layout.nodes`.
        with_entropies: fill in `behavior_entropies`.

    Returns:
        one tree with T = prompt + unique generated tokens + attended tool-response tokens.

    Raises:
        ValueError: the prompt is empty, or a turn was generated from an empty context (its first token could not be
            scored), or a turn lacks entropies of its tokens, which `with_entropies` needs.
    """
    num_nodes, num_prompt = len(layout.nodes), len(tree.prompt)
    if num_prompt == 0:
        raise ValueError(f"question {tree.question_id} has an empty prompt")
    turns = [tree.turn_of(node) for node in layout.nodes]
    generated = np.array([len(turn.token_ids) for turn in turns], dtype=np.int64)
    known = known_beginnings(tree, layout)
    is_read, num_known = _is_read(tree, layout), np.array([k.num_tokens for k in known], dtype=np.int64)
    observed = np.array([len(turn.observation) for turn in turns], dtype=np.int64)
    observed = np.where(is_read, observed - num_known, 0)
    begin = num_prompt + np.concatenate([[0], np.cumsum(generated + observed)]).astype(np.int64)
    packed = untrained_chain(int(begin[-1]))
    packed.token_ids[:num_prompt] = tree.prompt
    # `written`: the last token that each node wrote; `tail`: the last that its children read; at -1 the prompt's last.
    written, tail = (np.full(num_nodes + 1, num_prompt - 1, dtype=np.int64) for _ in range(2))
    for i, (node, turn) in enumerate(zip(layout.nodes, turns, strict=True)):
        start, middle, stop = begin[i], begin[i] + generated[i], begin[i + 1]
        written[i] = _append(packed, start, middle, tail[node.parent])
        behind = written[i]
        if turn.new_context:
            behind = _token_at(packed, written[known[i].node], known[i].num_tokens - 1)
        tail[i] = _append(packed, middle, stop, behind)
        packed.token_ids[start:middle] = turn.token_ids
        packed.token_ids[middle:stop] = turn.observation[num_known[i] :][: observed[i]]
        packed.loss_mask[start:middle] = True
        packed.behavior_log_probs[start:middle] = turn.log_probs
        packed.a_pos[start:middle] = attribution.a_pos[i]
        packed.a_neg[start:middle] = attribution.a_neg[i]
        packed.weight[start:middle] = attribution.weight[i]
        if with_entropies:
            packed.behavior_entropies[start:middle] = turn_entropies(tree, turn)
    if (packed.parent[packed.loss_mask] < 0).any():
        raise ValueError(f"question {tree.question_id} has a turn before which the model has read nothing")
    return _depth_first(packed)


def _append(packed: PackedTree, start: int, stop: int, behind: int) -> int:
    """Attaches the tokens [start, stop) below `behind` (-1: below none), and returns the last one, or else `behind`."""
    if start == stop:
        return behind
    packed.position_ids[start:stop] = np.arange(stop - start) + (packed.position_ids[behind] + 1 if behind >= 0 else 0)
    packed.parent[start] = behind
    return stop - 1


def _token_at(packed: PackedTree, token: int, position: int) -> int:
    """The token at a position of the path that ends with `token`; -1 for position -1."""
    while token >= 0 and packed.position_ids[token] > position:
        token = packed.parent[token]
    return token


def _depth_first(packed: PackedTree) -> PackedTree:
    """Sorts tokens, whose parents come first already, depth first, and computes their `end`.

    Only new contexts make it move tokens: they lie below the tokens with which they begin.
    """
    tokens = np.arange(packed.num_tokens)
    # Cut into chunks of consecutive tokens: only the last token of a chunk has children in other chunks.
    branches = tokens[packed.parent != tokens - 1]
    cuts = np.unique(np.concatenate([[0, packed.num_tokens], branches, packed.parent[branches] + 1]))
    begin, length = cuts[:-1], np.diff(cuts)
    # Each chunk's parent chunk, and the number of tokens in the chunk and below it; index -1 stands above all chunks.
    above = np.searchsorted(begin, packed.parent[begin], side="right") - 1
    size, next_free = np.append(length, 0), np.zeros(len(begin) + 1, dtype=np.int64)
    for chunk in reversed(range(len(begin))):
        size[above[chunk]] += size[chunk]
    moved = np.zeros(len(begin), dtype=np.int64)
    for chunk in range(len(begin)):
        moved[chunk] = next_free[above[chunk]]
        next_free[above[chunk]] += size[chunk]
        next_free[chunk] = moved[chunk] + length[chunk]
    end = np.repeat(moved + size[:-1], length)
    if np.array_equal(moved, begin):
        return replace(packed, end=end)
    position = tokens + np.repeat(moved - begin, length)
    order = np.argsort(position)
    parent = np.where(packed.parent < 0, -1, position[packed.parent])
    columns = {field.name: getattr(packed, field.name)[order] for field in fields(PackedTree)}
    return PackedTree(**columns | {"parent": parent[order], "end": end[order]})


def concatenate(packed_trees: Sequence[PackedTree]) -> PackedTree:
    """Joins one or more trees into one pass; no token attends to another tree."""
    sizes = [packed.num_tokens for packed in packed_trees]
    shift = np.repeat(np.cumsum([0, *sizes[:-1]]), sizes)
    columns = {
        field.name: np.concatenate([getattr(packed, field.name) for packed in packed_trees])
        for field in fields(PackedTree)
    }
    columns["parent"] = np.where(columns["parent"] < 0, -1, columns["parent"] + shift)
    columns["end"] = columns["end"] + shift
    return PackedTree(**columns)


def plan_passes(sizes: Sequence[int], max_tokens: int) -> list[list[int]]:
    """Groups trees into passes of at most `max_tokens` tokens: the largest first, each into the first with room.

    Args:
        sizes: tokens of each tree, none above `max_tokens`.
        max_tokens: the limit of a pass.

    Returns:
        the indices of each pass's trees; every index once, in order within a pass.
    """
    passes: list[list[int]] = []
    rooms: list[int] = []
    for i in sorted(range(len(sizes)), key=sizes.__getitem__, reverse=True):
        chosen = next((number for number, room in enumerate(rooms) if sizes[i] <= room), len(rooms))
        if chosen == len(rooms):
            passes.append([])
            rooms.append(max_tokens)
        passes[chosen].append(i)
        rooms[chosen] -= sizes[i]
    return [sorted(group) for group in passes]
