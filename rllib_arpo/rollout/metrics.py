"""Rollout metrics: exact means over the questions of one iteration, under the names of docs/design.md, section 3.

Every question is boiled down to a `QuestionStats` where it was sampled; `rollout_metrics` sums them up. No metric is
named after an agent, since fork ids would make the names unbounded.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rllib_arpo.core.tree import MASKED_STOP_REASONS, QuestionTree, StopReason, ToolCall, ToolStatus
from rllib_arpo.rollout.tree_sampler import BranchingCounts


@dataclass(frozen=True, slots=True)
class QuestionStats:
    """What one question adds to the metrics; per-trajectory tuples have M entries, one per leaf.

    Attributes:
        path_tokens: generated tokens on each leaf's whole path.
        path_tool_calls: tool calls on each leaf's whole path.
        tool_calls: the calls that were executed, a shared one once.
        num_turns, num_generated_tokens: unique ones.
        oldest_weights: the smallest weight version that sampled any of the tokens; None where there are none.
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
    num_forks: int
    num_topped_up: int
    oldest_weights: int | None
    branching: BranchingCounts

    @property
    def has_signal(self) -> bool:
        """Whether the rewards of the trajectories that count differ, before any overlong penalty (as DAPO filters)."""
        counted = {
            reward
            for reward, reason in zip(self.rewards, self.stop_reasons, strict=True)
            if reason not in MASKED_STOP_REASONS
        }
        return len(counted) > 1


def question_stats(tree: QuestionTree, branching: BranchingCounts) -> QuestionStats:
    leaves = tree.trajectories
    paths = [tree.path(leaf.agent_id) for leaf in leaves]
    turns = [turn for leaf in leaves for turn in leaf.turns]
    return QuestionStats(
        rewards=tuple(leaf.reward for leaf in leaves),
        accuracies=tuple(leaf.accuracy for leaf in leaves),
        formats_valid=tuple(leaf.format_valid for leaf in leaves),
        stop_reasons=tuple(leaf.stop_reason for leaf in leaves),
        path_tokens=tuple(sum(len(turn.token_ids) for turn in path) for path in paths),
        path_tool_calls=tuple(sum(turn.tool_call is not None for turn in path) for path in paths),
        tool_calls=tuple(turn.tool_call for turn in turns if turn.tool_call is not None),
        num_turns=len(turns),
        num_generated_tokens=sum(len(turn.token_ids) for turn in turns),
        num_forks=sum(leaf.parent is not None for leaf in leaves),
        num_topped_up=sum(leaf.topped_up for leaf in leaves),
        oldest_weights=min((int(v) for turn in turns for v in turn.weight_versions), default=None),
        branching=branching,
    )


def rollout_metrics(questions: Sequence[QuestionStats], seconds: float) -> dict[str, float]:
    """All rollout metrics of an iteration that sampled `questions` in `seconds` of wall time."""
    num_questions = len(questions)
    forks = sum(q.num_forks for q in questions)
    return {
        "episode_return_mean": _mean([r for q in questions for r in q.rewards]),
        "accuracy": _mean([a for q in questions for a in q.accuracies]),
        "pass_at_k": _mean([any(a > 0 for a in q.accuracies) for q in questions]),
        "format_valid": _mean([f for q in questions for f in q.formats_valid]),
        "response_tokens_mean": _mean([n for q in questions for n in q.path_tokens]),
        "entropy/initial": _mean([e for q in questions for e in q.branching.initial_entropies]),
        "entropy/after_tool": _mean([e for q in questions for e in q.branching.after_tool_entropies]),
        "entropy/delta": _mean([d for q in questions for d in q.branching.deltas]),
        "forks_per_question": forks / num_questions,
        "fork_events_per_question": sum(q.branching.fork_events for q in questions) / num_questions,
        "fork_rate": _ratio(
            sum(q.branching.fork_events for q in questions), sum(q.branching.eligible_nodes for q in questions)
        ),
        "topped_up_per_question": sum(q.num_topped_up for q in questions) / num_questions,
        "prefix_tokens_reused": sum(q.branching.prefix_tokens_reused for q in questions),
        "tool_calls_executed": sum(len(q.tool_calls) for q in questions),
        "tool_calls_per_trajectory": _mean([n for q in questions for n in q.path_tool_calls]),
        "tokens_per_second": sum(q.num_generated_tokens for q in questions) / seconds,
        **_tool_metrics([call for q in questions for call in q.tool_calls]),
        **_stop_metrics([reason for q in questions for reason in q.stop_reasons]),
    }


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


def _tool_metrics(calls: Sequence[ToolCall]) -> dict[str, float]:
    metrics: dict[str, float] = {}
    for name in sorted({call.name for call in calls}):
        own = [call for call in calls if call.name == name]
        p50, p99 = np.percentile([call.latency_s for call in own], [50, 99])
        metrics |= {
            f"tools/{name}/calls": len(own),
            f"tools/{name}/errors": sum(call.status is ToolStatus.ERROR for call in own),
            f"tools/{name}/timeouts": sum(call.status is ToolStatus.TIMEOUT for call in own),
            f"tools/{name}/latency_p50": float(p50),
            f"tools/{name}/latency_p99": float(p99),
        }
    return metrics


def _stop_metrics(reasons: Sequence[StopReason]) -> dict[str, float]:
    """Every reason is reported, as the share of the trajectories that it ended, so that columns stay the same."""
    counts = Counter(reasons)
    return {f"stop/{reason}": counts[reason] / max(len(reasons), 1) for reason in StopReason}


def _mean(values: Sequence[float]) -> float:
    return float(np.mean(values)) if values else 0.0


def _ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator else 0.0
