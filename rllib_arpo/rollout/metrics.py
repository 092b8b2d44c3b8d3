"""Rollout metrics: exact means over the questions of one iteration, under the names of docs/watch.md.

The env runner that sampled a question reduces it to a `QuestionStats`; `rollout_metrics` sums these up. No metric is
named after an agent, since fork ids would make the names unbounded.
"""

import itertools
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from rllib_arpo.core.pass_at_k import is_correct, pass_at_k
from rllib_arpo.core.rollout_history import EarlierQuestion
from rllib_arpo.core.token_counts import all_path_tokens, sampled_tokens
from rllib_arpo.core.tree import (
    MASKED_STOP_REASONS,
    ForkDecision,
    QuestionTree,
    StopReason,
    ToolCall,
    ToolStatus,
    Trajectory,
)

#: The names under `env_runners/` that ARPO reports, in training and evaluation: metrics, and the groups above them.
#: RLlib would let a metric of a callback replace one of these, or fail where one is a group and the other a number.
OWN_NAMES = {
    "accuracy", "new_contexts",
    "entropy", "episode_len_max", "episode_len_mean", "episode_len_min", "episode_return_max",
    "episode_return_mean", "episode_return_min", "fork_depth_mean", "fork_depth_p10", "fork_depth_p90",
    "fork_events_per_question", "fork_rate", "forks_per_question", "forks_refused",
    "format_valid", "generated_tokens", "generated_tokens_lifetime", "initial_rollouts_per_question",
    "num_env_steps_sampled",
    "num_env_steps_sampled_lifetime", "num_episodes", "num_episodes_lifetime", "num_module_steps_sampled",
    "num_module_steps_sampled_lifetime", "pass_at_k", "prefix_tokens_reused", "questions_dropped",
    "questions_given_up", "questions_requeued", "requests_refused", "resample_rounds", "response_tokens_mean", "stop",
    "tokens_per_second", "tool_calls_executed", "tool_calls_executed_lifetime", "tool_calls_per_trajectory",
    "tools", "topped_up_per_question", "weight_lag_max",
}  # fmt: skip
#: Quantiles of dH that are reported, as "p10", ...
DELTA_QUANTILES = (0.1, 0.5, 0.9)


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


def rollout_metrics(questions: Sequence[QuestionStats], seconds: float) -> dict[str, float]:
    """All rollout metrics of an iteration that sampled `questions` in `seconds` of wall time.

    A mean over nothing (dH where no tool was called, the depth of forks where there are none) is left out.
    """
    num_questions = len(questions)
    nodes = [node for q in questions for node in q.nodes]
    decided = [node for node in nodes if node.decision.eligible]
    num_generated_tokens = sum(q.num_generated_tokens for q in questions)
    return {
        "episode_return_mean": _mean([r for q in questions for r in q.rewards]),
        "accuracy": _mean([a for q in questions for a in q.accuracies]),
        "pass_at_k": _mean([_pass_at_all(q.accuracies) for q in questions]),
        "format_valid": _mean([f for q in questions for f in q.formats_valid]),
        "response_tokens_mean": _mean([n for q in questions for n in q.path_tokens]),
        **_mean_of("entropy/initial", [e for q in questions for e in q.initial_entropies]),
        **_mean_of("entropy/after_tool", [node.entropy for node in nodes if node.on_policy]),
        **{f"entropy/{name}": value for name, value in _delta_metrics(nodes).items()},
        "forks_per_question": sum(len(q.forks) for q in questions) / num_questions,
        "fork_events_per_question": sum(len(set(q.forks)) for q in questions) / num_questions,
        **_mean_of("fork_rate", [node.decision.children > 0 for node in decided]),
        **_fork_depths([depth for q in questions for _, depth in q.forks]),
        "initial_rollouts_per_question": sum(q.num_initial_rollouts for q in questions) / num_questions,
        "topped_up_per_question": sum(q.num_topped_up for q in questions) / num_questions,
        "prefix_tokens_reused": sum(q.prefix_tokens_reused for q in questions),
        "forks_refused": sum(q.forks_refused for q in questions),
        "requests_refused": sum(q.requests_refused for q in questions),
        "new_contexts": sum(q.new_contexts for q in questions),
        "tool_calls_executed": sum(len(q.tool_calls) for q in questions),
        "tool_calls_per_trajectory": _mean([n for q in questions for n in q.path_tool_calls]),
        "generated_tokens": num_generated_tokens,
        "tokens_per_second": num_generated_tokens / seconds,
        **_tool_metrics(questions, nodes),
        **_stop_metrics([reason for q in questions for reason in q.stop_reasons]),
    }


def _pass_at_all(accuracies: Sequence[float]) -> float:
    """pass@k of one question with k = all its leaves."""
    return pass_at_k(len(accuracies), sum(map(is_correct, accuracies)), len(accuracies))


def _delta_metrics(nodes: Sequence[NodeStats]) -> dict[str, float]:
    """The distribution of dH over the nodes on policy: its mean and quantiles, and how often the entropy rose."""
    deltas = [node.decision.delta for node in nodes if node.on_policy]
    if not deltas:
        return {}
    quantiles = np.quantile(deltas, DELTA_QUANTILES)
    return {
        "delta": _mean(deltas),
        **{f"delta_p{100 * q:.0f}": float(v) for q, v in zip(DELTA_QUANTILES, quantiles, strict=True)},
        "rise_share": _mean([delta > 0 for delta in deltas]),
    }


def _fork_depths(depths: Sequence[int]) -> dict[str, float]:
    """Args: `depths`: of each fork the turns above it."""
    if not depths:
        return {}
    low, high = np.quantile(depths, (0.1, 0.9))
    return {"fork_depth_mean": _mean(depths), "fork_depth_p10": float(low), "fork_depth_p90": float(high)}


def nested(metrics: Mapping[str, float]) -> dict[str, Any]:
    """{"a/b": 1} as {"a": {"b": 1}}, the shape of RLlib's result dict."""
    result: dict[str, Any] = {}
    for name, value in metrics.items():
        *groups, last = name.split("/")
        place = result
        for group in groups:
            place = place.setdefault(group, {})
        place[last] = value
    return result


def _tool_metrics(questions: Sequence[QuestionStats], nodes: Sequence[NodeStats]) -> dict[str, float]:
    """Of every tool that was offered: one that nobody called has 0 calls, and no latency."""
    calls = [call for q in questions for call in q.tool_calls]
    metrics: dict[str, float] = {}
    for name in sorted({call.name for call in calls}.union(*(q.tools_offered for q in questions))):
        own = [call for call in calls if call.name == name]
        deltas = _delta_metrics([node for node in nodes if node.tool == name])
        metrics |= {
            f"tools/{name}/calls": len(own),
            f"tools/{name}/errors": sum(call.status is ToolStatus.ERROR for call in own),
            f"tools/{name}/timeouts": sum(call.status is ToolStatus.TIMEOUT for call in own),
            **{f"tools/{name}/latency_{key}": value for key, value in _latencies(own).items()},
            **{f"tools/{name}/entropy_{key}": value for key, value in deltas.items()},
        }
    return metrics


def _latencies(calls: Sequence[ToolCall]) -> dict[str, float]:
    """Seconds; nothing without calls."""
    if not calls:
        return {}
    p50, p99 = np.percentile([call.latency_s for call in calls], [50, 99])
    return {"p50": float(p50), "p99": float(p99)}


def _stop_metrics(reasons: Sequence[StopReason]) -> dict[str, float]:
    """Every reason is reported, as the share of the trajectories that it ended, so that columns stay the same."""
    counts = Counter(reasons)
    return {f"stop/{reason}": counts[reason] / max(len(reasons), 1) for reason in StopReason}


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values))


def _mean_of(name: str, values: Sequence[float]) -> dict[str, float]:
    """`name` with the mean; nothing without values."""
    return {name: _mean(values)} if values else {}
