"""How evenly learners share the work of questions of very different size."""

from dataclasses import replace

import numpy as np
import pytest

from rllib_arpo.core.packing import PackedTree, untrained_chain
from rllib_arpo.core.shares import LeafWork, Part, share_out

PAIRS_PER_TOKEN = 16_000


def wide_tree(rng: np.random.Generator) -> PackedTree:
    """A prompt of 300 tokens and two roots, which fork into eight leaves each, somewhere on their way."""
    parent, depth = list(range(-1, 299)), list(range(300))

    def grow(tail: int, tokens: int) -> int:
        for _ in range(tokens):
            parent.append(tail)
            depth.append(depth[tail] + 1)
            tail = len(parent) - 1
        return tail

    length = int(300 * rng.lognormal(np.log(5), 0.5))
    for _ in range(2):
        trunk = int(length * rng.uniform())
        fork = grow(299, trunk)
        for _ in range(8):
            grow(fork, max(1, int((length - trunk) * rng.lognormal(0, 0.3))))
    below = np.ones(len(parent), dtype=np.int64)
    for token in reversed(range(1, len(parent))):
        below[parent[token]] += below[token]
    end = np.arange(len(parent)) + below
    columns = {"parent": np.array(parent), "position_ids": np.array(depth), "end": end}
    return replace(untrained_chain(len(parent)), **columns, loss_mask=np.ones(len(parent), dtype=bool))


@pytest.mark.parametrize(("learners", "least"), [(2, 0.95), (4, 0.93), (8, 0.88), (32, 0.70)])
def test_learners_wait_little_for_the_one_with_the_most_work(learners: int, least: float):
    """16 questions a step. What cutting computes twice counts as waiting; whole questions would keep 32 learners busy
    for a fifth of the time."""
    rng = np.random.default_rng(7)
    busy = []
    for _ in range(8):
        trees = {number: wide_tree(rng) for number in range(16)}
        leaves = {number: LeafWork(packed, PAIRS_PER_TOKEN) for number, packed in trees.items()}
        whole = [Part(number, 0, len(of_tree.tips)) for number, of_tree in leaves.items()]
        shares = share_out(trees, whole, learners, PAIRS_PER_TOKEN)
        largest = max(sum(leaves[part.tree].work(part) for part in share) for share in shares)
        busy.append(sum(leaves[part.tree].work(part) for part in whole) / learners / largest)
    print(f"{learners} learners: {np.mean(busy):.3f} busy")
    assert np.mean(busy) >= least
