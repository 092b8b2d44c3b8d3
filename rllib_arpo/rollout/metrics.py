"""What a question contributes to the metrics (`metric_table.py`): its env runner reduces it to a `QuestionStats`."""

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np

from rllib_arpo.core.rollout_history import EarlierQuestion
from rllib_arpo.core.token_counts import all_path_tokens, sampled_tokens
from rllib_arpo.core.tree import (
    MASKED_STOP_REASONS,
    ForkDecision,
    QuestionTree,
    StopReason,
    ToolCall,
    Trajectory,
)


@dataclass(frozen=True, slots=True)
class NodeStats:
    """One tool response that was examined.

    Attributes:
        tool: the tool that answered.
        entropy: nats, the mean over the window after it.
        on_policy: whether its trajectory began at the prompt. Nodes below forks would bias a mean, since forks start
            where the entropy is high.
        response: [m] int32, its tokens.
        depth: turns above it.
    """

    tool: str
    entropy: float
    on_policy: bool
    decision: ForkDecision
    response: np.ndarray = field(compare=False)
    depth: int


@dataclass(frozen=True, slots=True)
class QuestionStats:
    """The contribution of one question to the metrics; per-trajectory tuples have M entries, one per leaf.

    Attributes:
        path_tokens: generated tokens on each leaf's whole path.
        path_tool_calls: tool calls on each leaf's whole path.
        tool_calls: the calls that were executed, a shared one once.
        num_turns, num_generated_tokens: unique ones; the tokens also of forks that were taken back.
        longest_path: turns.
        forks: of each its parent and the turns above it, so that those of one node are equal.
        oldest_weights: the smallest weight version that sampled any of the tokens; None if there are no tokens.
        initial_accuracies: of the leaves that began at the prompt, without those that filled up the budget.
        initial_entropies: nats, the mean over the window at the start of each root.
        nodes: the tool responses that were examined.
        prefix_tokens_reused: tokens of the forks' prefixes that came from the engine's prefix cache.
        forks_refused: forks that the environment refused by an error.
        requests_refused: requests of agents that its env runner has not answered since the question that ended before.
        new_contexts: new contexts that trajectories read in place of their history; a shared one once.
        tools_offered: the tools that could have been called.
    """

    rewards: tuple[float, ...]
    accuracies: tuple[float, ...]
    formats_valid: tuple[bool, ...]
    stop_reasons: tuple[StopReason, ...]
    path_tokens: tuple[int, ...]
    path_tool_calls: tuple[int, ...]
    tool_calls: tuple[ToolCall, ...]
    num_turns: int
    longest_path: int
    num_generated_tokens: int
    forks: tuple[tuple[str, int], ...]
    num_initial_rollouts: int
    num_topped_up: int
    oldest_weights: int | None
    initial_accuracies: tuple[float, ...]
    initial_entropies: tuple[float, ...]
    nodes: tuple[NodeStats, ...]
    prefix_tokens_reused: int = 0
    tools_offered: tuple[str, ...] = ()
    forks_refused: int = 0
    requests_refused: int = 0
    new_contexts: int = 0

    @property
    def has_signal(self) -> bool:
        """Whether the rewards of the trajectories that count differ, before any overlong penalty (as DAPO filters)."""
        counted = {
            reward
            for reward, reason in zip(self.rewards, self.stop_reasons, strict=True)
            if reason not in MASKED_STOP_REASONS
        }
        return len(counted) > 1

    def history(self) -> EarlierQuestion:
        """The measurements for later questions: of the tool responses on trajectories from the prompt."""
        nodes = [node for node in self.nodes if node.on_policy]
        levels: dict[str, list[float]] = {}
        for node in nodes:
            levels.setdefault(node.tool, []).append(node.entropy)
        rises, depths = [node.decision.delta for node in nodes], [node.depth for node in nodes]
        return EarlierQuestion(levels, rises, depths)


def question_stats(
    tree: QuestionTree,
    entropy_window: int,
    prefix_tokens_reused: int = 0,
    tools_offered: tuple[str, ...] = (),
    forks_refused: int = 0,
    *,
    requests_refused: int = 0,
    tokens_taken_back: int = 0,
) -> QuestionStats:
    """The figures of a tree.

    Args:
        entropy_window: k, the number of a turn's first entropies at which decisions looked.
    """
    leaves = tree.trajectories
    paths = [tree.path(leaf.agent_id) for leaf in leaves]
    initial = [leaf for leaf in leaves if leaf.parent is None and not leaf.topped_up]
    turns = [turn for leaf in leaves for turn in leaf.turns]
    return QuestionStats(
        rewards=tuple(tree.returns().tolist()),
        accuracies=tuple(leaf.accuracy for leaf in leaves),
        formats_valid=tuple(leaf.format_valid for leaf in leaves),
        stop_reasons=tuple(leaf.stop_reason for leaf in leaves),
        path_tokens=tuple(all_path_tokens(tree).tolist()),
        path_tool_calls=tuple(sum(turn.tool_call is not None for turn in path) for path in paths),
        tool_calls=tuple(turn.tool_call for turn in turns if turn.tool_call is not None),
        num_turns=len(turns),
        longest_path=max(map(len, paths)),
        num_generated_tokens=sampled_tokens(tree) + tokens_taken_back,
        forks=tuple((leaf.parent, leaf.num_inherited_turns) for leaf in leaves if leaf.parent is not None),
        num_initial_rollouts=len(initial),
        num_topped_up=sum(leaf.topped_up for leaf in leaves),
        oldest_weights=min((int(v) for turn in turns for v in turn.weight_versions), default=None),
        initial_accuracies=tuple(leaf.accuracy for leaf in initial),
        initial_entropies=tuple(
            float(leaf.turns[0].entropies[:entropy_window].mean())
            for leaf in leaves
            if leaf.parent is None and leaf.turns and len(leaf.turns[0].entropies[:entropy_window])
        ),
        nodes=tuple(node for leaf in leaves for node in _nodes(leaf, entropy_window)),
        prefix_tokens_reused=prefix_tokens_reused,
        tools_offered=tools_offered,
        forks_refused=forks_refused,
        requests_refused=requests_refused,
        new_contexts=sum(turn.new_context for turn in turns),
    )


def _nodes(trajectory: Trajectory, entropy_window: int) -> Iterator[NodeStats]:
    """The nodes examined on the trajectory's own turns; skips nodes without a measured token."""
    for depth, (above, turn) in enumerate(itertools.pairwise(trajectory.turns), trajectory.num_inherited_turns + 1):
        if turn.decision is not None and len(turn.entropies[:entropy_window]):
            yield NodeStats(
                tool=above.tool,
                entropy=float(turn.entropies[:entropy_window].mean()),
                on_policy=trajectory.parent is None,
                decision=turn.decision,
                response=above.observation,
                depth=depth,
            )
