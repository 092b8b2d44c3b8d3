"""`baseline="value"`: judges turns against values of the states before them (docs/design.md, "Values of states")."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor

from rllib_arpo.connectors.steps import Attribution
from rllib_arpo.core.advantages import leaf_ranges
from rllib_arpo.core.columns import LAYOUTS, NODE_ATTRIBUTIONS, NODE_OFFSETS
from rllib_arpo.core.packing import with_attribution
from rllib_arpo.core.state_values import regression_sums, state_features, value_weights
from rllib_arpo.learner.metrics import Total, Totals
from rllib_arpo.learner.passes import Piece


class ValueBaseline:
    """What a learner knows of the values of states: the same on all learners, which add up what each has seen.

    Args:
        width: D of the policy's hidden states.
        attribution: as in `ARPOConfig`.
        decay: the factor of what earlier updates have seen, at each update.
        distributed: whether there are other learners.
    """

    def __init__(self, width: int, attribution: str, decay: float, device: torch.device, distributed: bool):
        self._decay, self._distributed = decay, distributed
        self._attribution = Attribution(attribution=attribution)
        self._sums = torch.zeros(width + 1, width + 2, dtype=torch.float64, device=device)
        self._seen = torch.zeros_like(self._sums)

    def subtract(self, pieces: Sequence[Piece], columns: dict[str, Any], totals: Totals) -> list[Piece]:
        """Takes the value of the state before each turn from the advantages of its leaves.

        The values are those that earlier updates give; `learn` adds the states of these pieces. A first turn keeps its
        advantages, since the value of the prompt is the mean of the group.

        Args:
            pieces: of all of the learner's questions, with `states`.
            columns: of the learner's connectors.
        """
        device = self._sums.device
        starts = [(piece.question, piece.packed.node[piece.packed.turn_starts]) for piece in pieces]
        states = torch.cat([torch.zeros(0, len(self._sums) - 1), *(piece.states for piece in pieces)])
        features = state_features(states.to(device))
        values = features @ value_weights(self._sums)
        targets = _at(starts, [(a.a_pos + a.a_neg) / a.weight for a in columns[NODE_ATTRIBUTIONS]]).to(device)
        leaves = _at(starts, [end - begin for begin, end in map(leaf_ranges, columns[LAYOUTS])]).to(device)
        self._seen = regression_sums(features, targets, leaves)
        totals.add(Total.VALUE_LEAVES, leaves.sum())
        totals.add(Total.VALUE_SQUARES, (leaves * targets.square()).sum())
        totals.add(Total.VALUE_ERROR, (leaves * (targets - values).square()).sum())

        offsets = [np.zeros(len(layout.nodes)) for layout in columns[LAYOUTS]]
        for (question, nodes), found in zip(starts, values.cpu().split([len(n) for _, n in starts]), strict=True):
            offsets[question][nodes] = found.numpy()
        judged = self._attribution(batch={**columns, NODE_OFFSETS: offsets})[NODE_ATTRIBUTIONS]
        return [replace(p, packed=with_attribution(p.packed, judged[p.question]), states=None) for p in pieces]

    def learn(self) -> None:
        """Adds what the learners have seen in this update; every learner must call it."""
        if self._distributed:
            dist.all_reduce(self._seen)
        self._sums.mul_(self._decay).add_(self._seen)

    def get_state(self) -> np.ndarray:
        return self._sums.cpu().numpy().copy()

    def set_state(self, state: np.ndarray) -> None:
        """Restores the result of `get_state`.

        Raises:
            ValueError: it is of a model of another width.
        """
        if state.shape != tuple(self._sums.shape):
            raise ValueError(f"The values are of hidden states of width {len(state) - 1}, not {len(self._sums) - 1}.")
        self._sums.copy_(torch.tensor(state))


def _at(places: Sequence[tuple[int, np.ndarray]], of_nodes: Sequence[np.ndarray]) -> Tensor:
    """What each question has at these nodes, one after the other."""
    return torch.from_numpy(np.concatenate([np.zeros(0), *(of_nodes[question][nodes] for question, nodes in places)]))
