"""How many continuations a tool response is worth, from the variances of earlier questions (docs/design.md)."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np

from rllib_arpo.core.rollout_budget import UNITS
from rllib_arpo.core.tree import QuestionTree, Trajectory, Turn


@dataclass(frozen=True, slots=True)
class NodeGroup:
    """The nodes (tool responses) of one question after the same tool at the same depth.

    The nodes are on trajectories from the prompt, so that they are independent. A suffix is what follows a node on the
    trajectory itself or on a fork of this node; forks further down are not counted, so that suffixes are independent.

    Attributes:
        depth: turns above the node.
        returns: of each node the returns of its suffixes, of whole paths.
        prefix_costs: unit of a budget -> the cost of each node's path down to the node.
        suffix_costs: unit -> the cost of each suffix.
    """

    tool: str
    depth: int
    returns: Sequence[Sequence[float]]
    prefix_costs: Mapping[str, Sequence[int]]
    suffix_costs: Mapping[str, Sequence[int]]


def node_groups(tree: QuestionTree) -> tuple[NodeGroup, ...]:
    """The nodes of a question, of the trajectories that count."""
    forks: dict[tuple[str | None, int], list[Trajectory]] = {}
    for trajectory in tree.trajectories:
        forks.setdefault((trajectory.parent, trajectory.num_inherited_turns), []).append(trajectory)
    returns = {t.agent_id: float(r) for t, r in zip(tree.trajectories, tree.returns(), strict=True)}
    found: dict[tuple[str, int], list[tuple[Sequence[Turn], list[Trajectory]]]] = {}
    for root in forks.get((None, 0), []):
        for depth in range(1, len(root.turns)):
            suffixes = [t for t in (root, *forks.get((root.agent_id, depth), ())) if t.counts]
            if suffixes:
                prefix = root.turns[:depth]
                found.setdefault((prefix[-1].tool, depth), []).append((prefix, suffixes))
    return tuple(
        NodeGroup(
            tool,
            depth,
            [[returns[t.agent_id] for t in suffixes] for _, suffixes in nodes],
            _costs(prefix for prefix, _ in nodes),
            _costs(t.turns[depth - t.num_inherited_turns :] for _, suffixes in nodes for t in suffixes),
        )
        for (tool, depth), nodes in found.items()
    )


def _costs(pieces: Iterable[Sequence[Turn]]) -> dict[str, list[int]]:
    kept = list(pieces)
    return {unit: [sum(map(cost, turns)) for turns in kept] for unit, cost in UNITS.items()}


def pooled_variances(questions: Iterable[Sequence[Sequence[float]]]) -> tuple[float, float] | None:
    """(s2_within, s2_between): the variance of returns below a node, and that of the nodes' true means in a question.

    One-way analysis of variance within questions, pooled over them: with J nodes of n_j suffixes in a question,
    `E sum_j n_j (mean_j - mean)^2 = (J - 1) s2_within + (n - sum_j n_j^2 / n) s2_between`.

    Args:
        questions: of each `NodeGroup.returns`; every node has at least one.

    Returns:
        Unbiased but for the floor of 0 on s2_between; None if nothing is known: no node has two suffixes, no question
        two nodes, or all returns of a question are the same in all questions.
    """
    within, between, factor = 0.0, 0.0, 0.0
    freedom_within = freedom_between = 0
    for question in questions:
        # Equal returns have deviations of exactly 0 only from one of them.
        nodes = [np.subtract(node, question[0][0]) for node in question]
        sizes, means = np.array([len(node) for node in nodes]), np.array([node.mean() for node in nodes])
        within += float(sum(((node - node.mean()) ** 2).sum() for node in nodes))
        between += float(sizes @ (means - sizes @ means / sizes.sum()) ** 2)
        factor += float(sizes.sum() - sizes @ sizes / sizes.sum())
        freedom_within += int(sizes.sum()) - len(nodes)
        freedom_between += len(nodes) - 1
    if not (freedom_within and freedom_between) or within == between == 0.0:
        return None
    of_suffixes = within / freedom_within
    return of_suffixes, max((between - freedom_between * of_suffixes) / factor, 0.0)


def best_suffixes(prefix_cost: float, suffix_cost: float, within: float, between: float) -> float:
    """The m that minimises the variance of a mean over n nodes with m suffixes each, at equal cost (Cochran, 10.6).

    The variance is `between / n + within / (n m)`, the cost `n (prefix_cost + m suffix_cost)`:
    `m = sqrt(prefix_cost / suffix_cost * within / between)`, infinite if nodes do not differ.
    """
    return math.sqrt(prefix_cost / suffix_cost * within / between) if between else math.inf


def planned_suffixes(questions: Iterable[Iterable[NodeGroup]], unit: str) -> dict[tuple[str, int], float]:
    """(tool, depth) -> m, where earlier questions tell it.

    Args:
        unit: of the costs, a key of `UNITS`; a mean cost below 1 counts as 1, as in a `RolloutBudget`.
    """
    groups: dict[tuple[str, int], list[NodeGroup]] = {}
    for group in chain.from_iterable(questions):
        groups.setdefault((group.tool, group.depth), []).append(group)
    planned = {}
    for key, found in groups.items():
        variances = pooled_variances(group.returns for group in found)
        if variances is not None:
            prefix = _mean_cost(group.prefix_costs[unit] for group in found)
            suffix = _mean_cost(group.suffix_costs[unit] for group in found)
            planned[key] = best_suffixes(prefix, suffix, *variances)
    return planned


def _mean_cost(costs: Iterable[Sequence[int]]) -> float:
    return max(float(np.mean(list(chain.from_iterable(costs)))), 1.0)


def planned_children(suffixes: float, most: int) -> int:
    """Z of a plan: m to the nearest integer (halves up) without the parent's own suffix, 0 .. `most`."""
    return max(math.floor(min(suffixes, most + 1) + 0.5) - 1, 0)
