"""Measures of turns, pure functions: mean entropy by token position, its rise at nodes, and what each rule would fork.

A node is a tool response after which a trajectory went on.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from rllib_arpo.core.branching import BRANCHING_RULES, BranchingParams, NodeEvidence, decides_by_p
from rllib_arpo.core.entropy import ENTROPY_NORMALIZATIONS, entropy_delta, running_delta
from rllib_arpo.core.intervals import half_width
from rllib_arpo.core.rollout_history import entropy_levels
from rllib_arpo.core.tree import NO_TOOL
from rllib_arpo.record.question import PlacedTurn

#: Names of groups of turns: those after the prompt, those after any tool response, after one tool's, after the n-th.
START, AFTER_TOOLS = "start", "after tools"


@dataclass(frozen=True, slots=True)
class Curve:
    """Mean entropy by position, up to the last position that any turn has.

    Each question counts once, by the mean of its turns that have the position, since its samples are not independent of
    each other. Only long turns contribute to the mean at late positions.

    Attributes:
        mean: [P] nats.
        half_width: [P] nats, of the 95 % t interval over questions; NaN if fewer than two have the position.
        num_questions, num_turns: [P], the numbers of those that have the position.
    """

    mean: np.ndarray
    half_width: np.ndarray
    num_questions: np.ndarray
    num_turns: np.ndarray


def entropy_curve(turns: Sequence[tuple[int, Sequence[float] | np.ndarray]], num_positions: int) -> Curve:
    """The curve of turns (question, entropies [n] in nats) over their first `num_positions` tokens.

    `mean_p = 1/|Q_p| sum_q m_qp`, where m_qp is the mean of H_p over the turns of question q that have more than p
    tokens, and Q_p are the questions with such a turn; `half_width_p = t s_p / sqrt(|Q_p|)`, s_p the standard deviation
    of m_qp over Q_p (ddof = 1).
    """
    rows = {question: row for row, question in enumerate(dict.fromkeys(question for question, _ in turns))}
    sums, counts = np.zeros((len(rows), num_positions)), np.zeros((len(rows), num_positions), int)
    for question, entropies in turns:
        n = min(len(entropies), num_positions)
        sums[rows[question], :n] += entropies[:n]
        counts[rows[question], :n] += 1
    has = counts > 0
    length = int(has.any(axis=0).sum())
    sums, counts, has = sums[:, :length], counts[:, :length], has[:, :length]
    by_question = np.divide(sums, counts, out=np.zeros_like(sums), where=has)
    num_questions = has.sum(axis=0)
    mean = by_question.sum(axis=0) / num_questions
    squares = (np.where(has, by_question - mean, 0.0) ** 2).sum(axis=0)
    deviation = np.sqrt(squares / np.maximum(num_questions - 1, 1))
    return Curve(mean, half_width(deviation, num_questions), num_questions, counts.sum(axis=0))


def entropy_curves(turns: Iterable[PlacedTurn], num_positions: int) -> dict[str, Curve]:
    """Group -> its curve: `START`, `AFTER_TOOLS`, "tool NAME", "round 1", "round 2", ...; only groups with turns."""
    groups = groups_of(turns)
    pairs = {
        name: [(placed.question.facts.number, placed.turn.entropies) for placed in group]
        for name, group in groups.items()
    }
    return {name: entropy_curve(group, num_positions) for name, group in pairs.items()}


def groups_of(turns: Iterable[PlacedTurn]) -> Mapping[str, list[PlacedTurn]]:
    """Group -> its turns, in the order `START`, `AFTER_TOOLS`, tools, rounds."""
    turns = list(turns)
    later = [turn for turn in turns if turn.depth]
    groups = {START: [turn for turn in turns if not turn.depth], AFTER_TOOLS: later}
    groups |= {
        f"tool {tool}": [t for t in later if t.after_tool == tool]
        for tool in sorted({t.after_tool or NO_TOOL for t in later})
    }
    groups |= {f"round {n}": [t for t in later if t.depth == n] for n in sorted({t.depth for t in later})}
    return {name: group for name, group in groups.items() if group}


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

    turn: PlacedTurn
    after: np.ndarray
    initial: np.ndarray

    @property
    def tool(self) -> str:
        return self.turn.after_tool or NO_TOOL

    @property
    def rise(self) -> float:
        """The mean of H_t - H_initial over the tokens that both have, nats per token."""
        n = min(len(self.after), len(self.initial))
        return float((self.after[:n].astype(float) - self.initial[:n]).mean())


def nodes_of(turns: Iterable[PlacedTurn], window: int) -> list[Node]:
    """The nodes of all trajectories, for windows of k = `window` tokens.

    Args:
        turns: of each sample, in their order.
    """
    nodes, initial = [], {}
    for turn in turns:
        sample = (turn.question.facts.number, turn.trajectory.agent_id)
        first = turn.turn.entropies[:window]
        if turn.depth == 0:
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


@dataclass(frozen=True, slots=True)
class ForkRule:
    """A rule of `core.branching` with the baseline and the units of dH."""

    branching: str
    baseline: str
    normalization: str

    @property
    def name(self) -> str:
        return f"{self.branching}, {self.baseline}, {self.normalization}"


def fork_rules(normalization: str) -> list[ForkRule]:
    """All rules that look at the entropy, from both baselines, in units of `normalization`; "probability" in others."""
    rules = [
        ForkRule(name, baseline, normalization)
        for name in filter(decides_by_p, BRANCHING_RULES)
        for baseline in (INITIAL, RUNNING)
    ]
    others = [unit for unit in ENTROPY_NORMALIZATIONS if unit != normalization]
    return rules + [ForkRule("probability", INITIAL, unit) for unit in others]


def expected_forks(
    rule: ForkRule, nodes: Sequence[Node], params: BranchingParams, vocab_size: int
) -> dict[str, np.ndarray]:
    """Per node, [N], if the rule decides each by itself: the expected children, the probability of at least one."""
    chance = BRANCHING_RULES[rule.branching].chance
    assert chance is not None  # `fork_rules` has no others
    rises = deltas(nodes, rule.baseline, rule.normalization, vocab_size)
    child, width = np.array([chance(NodeEvidence(float(rise)), params) for rise in rises]), params.branch_width
    return {"children_per_node": width * child, "share_of_nodes_forked": 1 - (1 - child) ** width}
