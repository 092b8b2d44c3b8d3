"""The tree of trajectories that ARPO samples for one question.

A trajectory owns the turns that it generated itself; the path of a fork also has the turns of its ancestors up to the
turn at which it was forked. Two trajectories share a token if and only if they share the turn that generated it:
equal tokens of different turns are never merged.
"""

from __future__ import annotations

import enum
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np


class StopReason(enum.StrEnum):
    """How a trajectory ended (docs/design.md, "Adaptive rollout", rule 6)."""

    ANSWER = "answer"
    NO_ANSWER = "no_answer"
    TOKEN_LIMIT = "token_limit"
    TOOL_CALL_LIMIT = "tool_call_limit"
    MALFORMED_CALL = "malformed_call"
    WORLD_ENDED = "world_ended"
    BROKEN_TOOL = "broken_tool"
    UNREAD_VERDICT = "unread_verdict"
    DEADLINE = "deadline"
    ENGINE_FAILURE = "engine_failure"
    ERROR = "error"


#: Endings that say nothing about the policy: such a trajectory enters neither the group mean nor the loss.
MASKED_STOP_REASONS = frozenset(
    {
        StopReason.BROKEN_TOOL,
        StopReason.UNREAD_VERDICT,
        StopReason.DEADLINE,
        StopReason.ENGINE_FAILURE,
        StopReason.ERROR,
    }
)
#: The masked endings that may differ when the question is asked again, whatever the policy does.
OUTAGE_STOP_REASONS = MASKED_STOP_REASONS - {StopReason.DEADLINE}
#: Endings by a limit of tokens or of tool calls, which RLlib calls truncations.
TRUNCATED_STOP_REASONS = frozenset({StopReason.TOKEN_LIMIT, StopReason.TOOL_CALL_LIMIT})


class ToolStatus(enum.StrEnum):
    """The outcome of one tool call."""

    OK = "ok"
    ERROR = "error"
    TIMEOUT = "timeout"


#: Stands for the tool's name if the environment does not say which tool it called.
NO_TOOL = ""


@dataclass(frozen=True, slots=True)
class ToolCall:
    """One executed tool call.

    Attributes:
        latency_s: wall time in seconds.
        argument: the text that the model gave the tool, or the arguments of a function call as JSON; empty if the
            environment does not say.
    """

    name: str
    status: ToolStatus
    latency_s: float
    argument: str = ""


@dataclass(frozen=True, slots=True)
class ForkDecision:
    """The measurement and the decision at a tool response, made on the first tokens generated after it.

    Attributes:
        level: the entropy of these tokens, normalised (`core.entropy.entropy_level`).
        delta: dH, the rise of the level against the baseline (paper eq. 4).
        probability: P, for the rules that look at the entropy; None for other rules, and if nothing was decided.
        eligible: whether budget remained when the node was decided.
        children: trajectories that were forked here.
        budget: how many forks the question had left before this decision, `children` included.
    """

    level: float
    delta: float
    probability: float | None = None
    eligible: bool = False
    children: int = 0
    budget: int = 0


@dataclass(frozen=True, slots=True)
class TurnTimes:
    """The times of a turn, in seconds since the question began.

    Attributes:
        started: the request went to the engine.
        generated: the engine had generated the last token.
        answered: the environment had answered, after the tool; None if the turn was cut off before.
    """

    started: float
    generated: float
    answered: float | None = None


@dataclass(frozen=True, slots=True)
class Turn:
    """One environment step of one trajectory.

    Attributes:
        token_ids: [n] int32, the tokens that the model generated, as sampled.
        log_probs: [n] float32, the engine's log-probs of them at the sampling temperature (the behaviour policy).
        entropies: [min(k, n)] float32 nats, the entropies of the first k generated tokens (paper eq. 3); all [n] if
            record_entropies="all".
        observation: [m] int32, the tool response that follows; empty after the last turn.
        new_context: whether the observation replaces all that the model has read and written so far: an agent has
            shortened its history, or another conversation of the same trajectory continues.
        weight_versions: [n] int32, the version of the weights that sampled each token.
        tool_call: the call that produced `observation`, if one was executed.
        decision: about the tool response BEFORE this turn; lost if the turn is cut off. None for a trajectory's first
            own turn, which follows the prompt or the fork itself.
        times: None if they were not measured.
        reward: the environment's reward for the turn.
    """

    token_ids: np.ndarray
    log_probs: np.ndarray
    entropies: np.ndarray
    observation: np.ndarray
    weight_versions: np.ndarray
    tool_call: ToolCall | None = None
    decision: ForkDecision | None = None
    times: TurnTimes | None = None
    reward: float = 0.0
    new_context: bool = False

    @property
    def tool(self) -> str:
        """The tool that the turn called."""
        return self.tool_call.name if self.tool_call else NO_TOOL


def context_after(prompt: np.ndarray, turns: Sequence[Turn]) -> np.ndarray:
    """The whole context of the model after the turns of a path, [n] int32."""
    pieces = [prompt]
    for turn in turns:
        if turn.new_context:
            pieces.clear()
        else:
            pieces.append(turn.token_ids)
        pieces.append(turn.observation)
    return np.concatenate(pieces)


@dataclass(frozen=True, slots=True)
class Trajectory:
    """One leaf of the tree; for RLlib, one agent of the episode.

    Attributes:
        agent_id: "0", "1", ... for roots; the first fork of "0" is "0.0".
        turns: the turns that this trajectory generated itself.
        stop_reason: why it ended.
        accuracy: acc of the reward, in [0, 1].
        format_valid: whether the whole path keeps to the format.
        parent: the agent it was forked from; None for a root.
        num_inherited_turns: how many turns of the parent's PATH precede its own turns (0 for a root). A fork shares
            the parent's turns 0 .. num_inherited_turns - 1 and the tool response that ends the last of them.
        topped_up: whether it is a root that was added after the others had ended (rule 5).
    """

    agent_id: str
    turns: tuple[Turn, ...]
    stop_reason: StopReason
    accuracy: float = 0.0
    format_valid: bool = False
    parent: str | None = None
    num_inherited_turns: int = 0
    topped_up: bool = False

    @property
    def counts(self) -> bool:
        """Whether the trajectory is in the group mean and in the loss."""
        return self.stop_reason not in MASKED_STOP_REASONS

    @property
    def num_path_turns(self) -> int:
        """Turns on the whole path."""
        return self.num_inherited_turns + len(self.turns)


def fork_path(agent_id: str) -> list[int]:
    """The forks that lead to a trajectory: [1, 0] for "1.0", the first child of root 1. Sorts in logical order."""
    return [int(part) for part in agent_id.split(".")]


@dataclass(frozen=True, slots=True)
class QuestionTree:
    """All trajectories of one question. `prompt` is [p] int32; parents precede their forks in `trajectories`.

    The sampler makes it; learners, metrics, the record and its readers all use this object. Functions compute
    everything that follows from it (`core/figures.py`, `core/token_counts.py`).
    """

    question_id: str
    prompt: np.ndarray
    trajectories: tuple[Trajectory, ...]

    def by_id(self) -> dict[str, Trajectory]:
        return {t.agent_id: t for t in self.trajectories}

    def turns(self) -> Iterator[Turn]:
        """All turns; a shared one appears once."""
        for trajectory in self.trajectories:
            yield from trajectory.turns

    def initial(self) -> list[Trajectory]:
        """The trajectories that began at the prompt, without top-ups."""
        return [t for t in self.trajectories if t.parent is None and not t.topped_up]

    def forks(self) -> list[Trajectory]:
        return [t for t in self.trajectories if t.parent is not None]

    def path(self, agent_id: str) -> list[Turn]:
        """All turns from the prompt to the end of `agent_id`, the inherited ones included."""
        by_id = self.by_id()
        trajectory = by_id[agent_id]
        pieces, length = [trajectory.turns], trajectory.num_inherited_turns
        while trajectory.parent is not None:
            trajectory = by_id[trajectory.parent]
            pieces.append(trajectory.turns[: max(length - trajectory.num_inherited_turns, 0)])
            length = min(length, trajectory.num_inherited_turns)
        return [turn for piece in reversed(pieces) for turn in piece]

    def turn_of(self, node: TreeNode) -> Turn:
        return self.trajectories[node.trajectory].turns[node.turn]

    def return_of(self, agent_id: str) -> float:
        """The sum of the rewards along the path of a trajectory, inherited turns included."""
        return math.fsum(turn.reward for turn in self.path(agent_id))

    def returns(self) -> np.ndarray:
        """The return of each trajectory, in order; float64."""
        return np.array([self.return_of(t.agent_id) for t in self.trajectories])


@dataclass(frozen=True, slots=True)
class TreeNode:
    """One turn in the depth-first order of a tree.

    Attributes:
        trajectory: index into `QuestionTree.trajectories` of the one that generated the turn.
        turn: index into that trajectory's own `turns`.
        parent: index of the parent node in the depth-first list; -1 below the prompt.
        leaf_begin, leaf_end: the half-open range of the leaves below (or at) this node, in `TreeLayout.leaves` order.
    """

    trajectory: int
    turn: int
    parent: int
    leaf_begin: int
    leaf_end: int


@dataclass(frozen=True, slots=True)
class TreeLayout:
    """Depth-first order of the turns on paths to leaves that count.

    Attributes:
        nodes: N nodes, parents before children; the turns below a node follow it without a gap.
        leaves: L indices into `QuestionTree.trajectories`; the leaves below any node are contiguous.
    """

    nodes: tuple[TreeNode, ...]
    leaves: tuple[int, ...]


def depth_first_layout(tree: QuestionTree) -> TreeLayout:
    """Orders the turns of `tree` depth first, without turns that lead to no leaf that counts.

    Raises:
        ValueError: a trajectory was forked at a turn that its parent does not have.
    """
    attached = _attached(tree)
    # (trajectory, own turn, parent, leaf_begin) of every turn, and how many leaves are below it.
    placed: list[tuple[int, int, int, int]] = []
    num_below: list[int] = []
    leaves: list[int] = []
    # No recursion: a path may have thousands of turns. The next turn to place is at the end of the list.
    waiting = [(root, 0, -1) for root in reversed(attached.get((-1, -1), ()))]
    while waiting:
        i, own_turn, parent = waiting.pop()
        trajectory = tree.trajectories[i]
        if own_turn < len(trajectory.turns):
            position = len(placed)
            placed.append((i, own_turn, parent, len(leaves)))
            num_below.append(0)
            forks = attached.get((i, trajectory.num_inherited_turns + own_turn), ())
            waiting += [(fork, 0, position) for fork in reversed(forks)]
            waiting.append((i, own_turn + 1, position))
        elif trajectory.counts:
            leaves.append(i)
            if parent >= 0:
                num_below[parent] += 1
    lost = {i for i, t in enumerate(tree.trajectories) if t.counts}.difference(leaves)
    if lost:
        ids = ", ".join(tree.trajectories[i].agent_id for i in sorted(lost))
        raise ValueError(f"question {tree.question_id}: trajectories {ids} were forked at turns that do not exist")
    return TreeLayout(_nodes_with_leaves(placed, num_below), tuple(leaves))


def _attached(tree: QuestionTree) -> dict[tuple[int, int], list[int]]:
    """(i, j) -> the trajectories whose own turns follow turn j of trajectory i's PATH; (-1, -1) is the prompt."""
    index = {t.agent_id: i for i, t in enumerate(tree.trajectories)}
    attached: dict[tuple[int, int], list[int]] = {}
    for i, trajectory in enumerate(tree.trajectories):
        owner, depth = i, trajectory.num_inherited_turns - 1
        while depth >= 0 and depth < tree.trajectories[owner].num_inherited_turns:
            parent = tree.trajectories[owner].parent
            assert parent is not None  # It has inherited turns.
            owner = index[parent]
        attached.setdefault((owner if depth >= 0 else -1, depth), []).append(i)
    return attached


def _nodes_with_leaves(placed: list[tuple[int, int, int, int]], num_below: list[int]) -> tuple[TreeNode, ...]:
    """The placed turns as nodes, without those below which there is no leaf.

    Args:
        placed: (trajectory, own turn, parent, leaf_begin), parents first.
        num_below: how many leaves end directly below each of them; changed to how many are anywhere below.
    """
    for position in reversed(range(len(placed))):
        parent = placed[position][2]
        if parent >= 0:
            num_below[parent] += num_below[position]
    nodes: list[TreeNode] = []
    node_at = {-1: -1}
    for position, (i, own_turn, parent, leaf_begin) in enumerate(placed):
        if num_below[position]:
            node_at[position] = len(nodes)
            nodes.append(TreeNode(i, own_turn, node_at[parent], leaf_begin, leaf_begin + num_below[position]))
    return tuple(nodes)


@dataclass(frozen=True, slots=True)
class KnownBeginning:
    """A new context begins with the first `num_tokens` tokens that node `node` on its path had read and written."""

    node: int
    num_tokens: int


def known_beginnings(tree: QuestionTree, layout: TreeLayout) -> list[KnownBeginning]:
    """How much of each node's new context (`Turn.new_context`) is already on its path; 0 tokens for other nodes.

    Only its own path counts: trajectories share turns, never tokens that are merely equal.
    """
    known = [KnownBeginning(n, 0) for n in range(len(layout.nodes))]
    turns = [tree.turn_of(node) for node in layout.nodes]
    if not any(turn.new_context for turn in turns):
        return known
    # All that a node had read and written at the end of its turn, and the context after it; at index -1, the prompt.
    written: list[np.ndarray] = []
    contexts = [np.zeros(0, np.int32)] * len(turns) + [tree.prompt]
    for n, turn in enumerate(turns):
        parent = layout.nodes[n].parent
        written.append(np.concatenate([contexts[parent], turn.token_ids]))
        contexts[n] = turn.observation if turn.new_context else np.concatenate([written[n], turn.observation])
        ancestor = n
        while turn.new_context and ancestor >= 0:
            if (shared := _num_common(written[ancestor], turn.observation)) > known[n].num_tokens:
                known[n] = KnownBeginning(ancestor, shared)
            ancestor = layout.nodes[ancestor].parent
    return known


def _num_common(one: np.ndarray, other: np.ndarray) -> int:
    """The number of equal tokens with which two contexts begin."""
    length = min(len(one), len(other))
    differs = np.flatnonzero(one[:length] != other[:length])
    return int(differs[0]) if len(differs) else length
