"""Rollout metrics: exact means over the questions of one iteration, under the names of docs/watch.md.

They are functions of the questions' trees (`core/figures.py`), and of what a `SampledQuestion` states beside its tree.
No metric is named after an agent, since fork ids would make the names unbounded.
"""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from rllib_arpo.core.figures import (
    ExaminedNode,
    conversations_begun,
    examined_nodes,
    fork_places,
    initial_entropies,
    path_tool_calls,
    tool_calls,
)
from rllib_arpo.core.fork_plan import planned_children
from rllib_arpo.core.pass_at_k import is_correct, pass_at_k
from rllib_arpo.core.rollout_history import RolloutReference
from rllib_arpo.core.token_counts import all_path_tokens
from rllib_arpo.core.tree import QuestionTree, StopReason, ToolCall, ToolStatus
from rllib_arpo.rollout.messages import SampledQuestion

#: The names under `env_runners/` that ARPO reports, in training and evaluation: metrics, and the groups above them.
#: RLlib would let a metric of a callback replace one of these, or fail where one is a group and the other a number.
OWN_NAMES = {
    "accuracy", "conversations_begun",
    "entropy", "episode_len_max", "episode_len_mean", "episode_len_min", "episode_return_max",
    "episode_return_mean", "episode_return_min", "fork_depth_mean", "fork_depth_p10", "fork_depth_p90",
    "fork_events_per_question", "fork_rate", "fork_width_planned", "forks_per_question", "forks_refused",
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


def rollout_metrics(questions: Sequence[SampledQuestion], seconds: float) -> dict[str, float]:
    """All rollout metrics of an iteration that sampled `questions` in `seconds` of wall time.

    A mean over nothing (dH where no tool was called, the depth of forks where there are none) is left out.
    """
    num_questions, trees = len(questions), [question.tree for question in questions]
    leaves = [leaf for tree in trees for leaf in tree.trajectories]
    nodes = [node for q in questions for node in examined_nodes(q.tree, q.entropy_window)]
    decided = [node for node in nodes if node.decision.eligible]
    calls = [call for tree in trees for call in tool_calls(tree)]
    forks = [fork_places(tree) for tree in trees]
    num_generated_tokens = sum(q.num_generated_tokens for q in questions)
    return {
        "episode_return_mean": _mean([r for tree in trees for r in tree.returns()]),
        "accuracy": _mean([leaf.accuracy for leaf in leaves]),
        "pass_at_k": _mean([_pass_at_all(tree) for tree in trees]),
        "format_valid": _mean([leaf.format_valid for leaf in leaves]),
        "response_tokens_mean": _mean([n for tree in trees for n in all_path_tokens(tree)]),
        **_mean_of("entropy/initial", [e for q in questions for e in initial_entropies(q.tree, q.entropy_window)]),
        **_mean_of("entropy/after_tool", [node.entropy for node in nodes if node.on_policy]),
        **{f"entropy/{name}": value for name, value in _delta_metrics(nodes).items()},
        "forks_per_question": sum(map(len, forks)) / num_questions,
        "fork_events_per_question": sum(len(set(places)) for places in forks) / num_questions,
        **_mean_of("fork_rate", [node.decision.children > 0 for node in decided]),
        **_fork_depths([depth for places in forks for _, depth in places]),
        "initial_rollouts_per_question": sum(len(tree.initial()) for tree in trees) / num_questions,
        "topped_up_per_question": sum(leaf.topped_up for leaf in leaves) / num_questions,
        "prefix_tokens_reused": sum(q.prefix_tokens_reused for q in questions),
        "forks_refused": sum(q.forks_refused for q in questions),
        "requests_refused": sum(q.requests_refused for q in questions),
        "conversations_begun": sum(map(conversations_begun, trees)),
        "tool_calls_executed": len(calls),
        "tool_calls_per_trajectory": _mean([n for tree in trees for n in path_tool_calls(tree)]),
        "generated_tokens": num_generated_tokens,
        "tokens_per_second": num_generated_tokens / seconds,
        **_tool_metrics({name for q in questions for name in q.tools_offered}, calls, nodes),
        **_stop_metrics([leaf.stop_reason for leaf in leaves]),
    }


def plan_metrics(reference: RolloutReference, num_rollouts: int) -> dict[str, float]:
    """Of the fork widths that earlier questions planned; nothing without a plan."""
    plans = reference.planned_suffixes.values()
    return _mean_of("fork_width_planned", [planned_children(suffixes, num_rollouts) for suffixes in plans])


def _pass_at_all(tree: QuestionTree) -> float:
    """pass@k of one question with k = all its leaves."""
    leaves = tree.trajectories
    return pass_at_k(len(leaves), sum(is_correct(leaf.accuracy) for leaf in leaves), len(leaves))


def _delta_metrics(nodes: Sequence[ExaminedNode]) -> dict[str, float]:
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


def _tool_metrics(offered: set[str], calls: Sequence[ToolCall], nodes: Sequence[ExaminedNode]) -> dict[str, float]:
    """Of every tool that was offered: one that nobody called has 0 calls, and no latency."""
    metrics: dict[str, float] = {}
    for name in sorted({call.name for call in calls} | offered):
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
