"""How many keys tree attention gathers, and how many pairs its tiles compute, on the workload of the benchmarks."""

import itertools
import math

import pytest
import torch

from release.benchmarks.learner.rollouts import make_rollouts
from release.benchmarks.learner.tree_workload import make_question
from rllib_arpo.core.packing import concatenate
from rllib_arpo.policy.attention import varlen


def pairs_in_tiles(call, rows, columns):
    """The query-key pairs that flash attention computes: all of each tile with a pair that attends."""
    total = 0
    offsets = (call.query_offsets.tolist(), call.key_offsets.tolist())
    for n, m in zip(*([b - a for a, b in itertools.pairwise(of)] for of in offsets), strict=True):
        for last in range(rows, n + rows, rows):
            seen = m - n + min(last, n) if call.causal else m
            total += rows * columns * math.ceil(seen / columns)
    return total


@pytest.mark.parametrize(
    ("sharing", "gathered", "forward", "backward"),
    [(2.5, (3.66, 1.63), (1.65, 1.49), (1.43, 1.38)), (5.0, (7.90, 1.34), (1.63, 1.24), (1.37, 1.18))],
)
def test_how_much_cuts_save(sharing, gathered, forward, backward, monkeypatch):
    """Keys gathered per token, and pairs in tiles per pair that attends: without cuts, and with them."""
    trees = make_rollouts([make_question(sharing, 2048, seed) for seed in range(8)]).trees
    end = torch.from_numpy(concatenate(trees).end)
    plans = [varlen.VarlenTree._plan(end.numpy(), torch.bfloat16, torch.device("cpu"), None)]
    monkeypatch.setattr(varlen, "_cuts", lambda *_: [])
    plans.insert(0, varlen.VarlenTree._plan(end.numpy(), torch.bfloat16, torch.device("cpu"), None))
    pairs = int((end - torch.arange(len(end))).sum())
    for plan, keys, *tiles in zip(plans, gathered, forward, backward, strict=True):
        indices = [call.key_index for call in plan.calls if call.key_index is not None]
        assert sum(map(len, indices)) / len(end) == pytest.approx(keys, abs=0.01)
        # The shapes that flash attention 2 has for heads of 128.
        for shape, expected in zip(((128, 64), (64, 128)), tiles, strict=True):
            assert sum(pairs_in_tiles(call, *shape) for call in plan.calls) / pairs == pytest.approx(expected, abs=0.01)
