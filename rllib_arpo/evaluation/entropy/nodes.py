"""Nodes: tool responses after which a trajectory went on, and how far the entropy rose there."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from rllib_arpo.core.entropy import entropy_delta, running_delta
from rllib_arpo.core.rollout_history import entropy_levels
from rllib_arpo.record.read import Row

#: The baselines of dH: the trajectory's own first tokens (the paper), or the mean after responses of the same tool.
INITIAL, RUNNING = "initial", "running"


@dataclass(frozen=True, slots=True)
class Node:
    """One tool response after which a turn was sampled.

    Attributes:
        turn: the turn after it.
        after: [min(k, n)] nats, of that turn's first k tokens (H_t).
        initial: [min(k, m)] nats, of the first k tokens of its trajectory (H_initial).
    """

    turn: Row
    after: np.ndarray
    initial: np.ndarray

    @property
    def tool(self) -> str:
        name: str = self.turn["after_tool"]
        return name

    @property
    def rise(self) -> float:
        """The mean of H_t - H_initial over the tokens that both have, nats per token."""
        n = min(len(self.after), len(self.initial))
        return float((self.after[:n].astype(float) - self.initial[:n]).mean())


def nodes_of(turns: Iterable[Row], window: int) -> list[Node]:
    """The nodes of all trajectories, for windows of k = `window` tokens.

    Args:
        turns: of each sample, in their order.
    """
    nodes, initial = [], {}
    for turn in turns:
        sample, first = (turn["number"], turn["agent_id"]), np.asarray(turn["entropies"][:window], np.float32)
        if turn["depth"] == 0:
            initial[sample] = first
        else:
            nodes.append(Node(turn, first, initial[sample]))
    return nodes


def deltas(nodes: Sequence[Node], baseline: str, normalization: str, vocab_size: int) -> np.ndarray:
    """dH of every node, [N].

    `INITIAL`: `normalize(H_t - H_initial)` (`core.entropy.entropy_delta`). `RUNNING`: `normalize(H_t - b)`
    (`core.entropy.running_delta`), where b is the mean, in nats per token, over all nodes after the same tool: what the
    running baseline comes to when it has seen these nodes.
    """
    if baseline == INITIAL:
        return np.array([entropy_delta(node.after, node.initial, vocab_size, normalization) for node in nodes])
    levels = [{node.tool: [float(node.after.mean())]} for node in nodes if len(node.after)]
    means = entropy_levels(levels).by_tool
    return np.array([running_delta(node.after, means.get(node.tool, 0.0), vocab_size, normalization) for node in nodes])
