"""Computes figures of a question's tree: its endings, forks, tools and weights, and its examined tool responses.

`core/token_counts.py` counts tokens.
"""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from rllib_arpo.core.pass_at_k import is_correct
from rllib_arpo.core.tree import ForkDecision, QuestionTree, StopReason, ToolCall, Trajectory


@dataclass(frozen=True, slots=True)
class ExaminedNode:
    """One tool response at which the sampler could decide to fork.

    Attributes:
        tool: the tool that answered.
        entropy: nats, the mean over the window after it.
        from_prompt: whether its trajectory began at the prompt. Nodes below forks would bias a mean, since forks start
            where the entropy is high.
        response: [m] int32, its tokens.
        depth: turns above it.
    """

    tool: str
    entropy: float
    from_prompt: bool
    decision: ForkDecision
    response: np.ndarray = field(compare=False)
    depth: int


def examined_nodes(tree: QuestionTree, entropy_window: int) -> list[ExaminedNode]:
    """The tool responses that were examined, without those after which no entropy was measured.

    Args:
        entropy_window: k, how many of a turn's first entropies a decision reads.
    """
    return [node for trajectory in tree.trajectories for node in _examined(trajectory, entropy_window)]


def _examined(trajectory: Trajectory, entropy_window: int) -> Iterator[ExaminedNode]:
    for depth, (above, turn) in enumerate(itertools.pairwise(trajectory.turns), trajectory.num_inherited_turns + 1):
        if turn.decision is not None and len(turn.entropies[:entropy_window]):
            yield ExaminedNode(
                tool=above.tool,
                entropy=float(turn.entropies[:entropy_window].mean()),
                from_prompt=trajectory.parent is None,
                decision=turn.decision,
                response=above.observation,
                depth=depth,
            )


def initial_entropies(tree: QuestionTree, entropy_window: int) -> list[float]:
    """The mean entropy, in nats, over the window at the start of each trajectory from the prompt."""
    firsts = [t.turns[0].entropies[:entropy_window] for t in tree.trajectories if t.parent is None and t.turns]
    return [float(entropies.mean()) for entropies in firsts if len(entropies)]


def has_signal(tree: QuestionTree) -> bool:
    """Whether the returns of the trajectories that count differ, before any overlong penalty (DAPO's filter)."""
    return len({tree.return_of(t.agent_id) for t in tree.trajectories if t.counts}) > 1


def is_solved(tree: QuestionTree) -> bool:
    """Whether any trajectory is right: pass@k with k = M."""
    return any(is_correct(trajectory.accuracy) for trajectory in tree.trajectories)


def num_turns(tree: QuestionTree) -> int:
    """The number of turns; a shared one counts once."""
    return sum(len(trajectory.turns) for trajectory in tree.trajectories)


def longest_path(tree: QuestionTree) -> int:
    """The number of turns on the longest path."""
    return max((trajectory.num_path_turns for trajectory in tree.trajectories), default=0)


def tool_calls(tree: QuestionTree) -> list[ToolCall]:
    """The executed calls; a shared one appears once."""
    return [turn.tool_call for turn in tree.turns() if turn.tool_call is not None]


def path_tool_calls(tree: QuestionTree) -> list[int]:
    """[M]: the number of calls on the whole path of each trajectory."""
    paths = [tree.path(t.agent_id) for t in tree.trajectories]
    return [sum(turn.tool_call is not None for turn in path) for path in paths]


def tool_names(tree: QuestionTree) -> list[str]:
    """The known names of the tools that were called, sorted."""
    return sorted({call.name for call in tool_calls(tree) if call.name})


def stop_reasons(tree: QuestionTree) -> list[StopReason]:
    """The endings that occur, sorted."""
    return sorted({trajectory.stop_reason for trajectory in tree.trajectories})


def oldest_weights(tree: QuestionTree) -> int | None:
    """The smallest weight version that sampled any of the tokens; None if there are no tokens."""
    return min((int(version) for turn in tree.turns() for version in turn.weight_versions), default=None)


def new_contexts(tree: QuestionTree) -> int:
    """The number of new contexts that trajectories read instead of their history; a shared one counts once."""
    return sum(turn.new_context for turn in tree.turns())
