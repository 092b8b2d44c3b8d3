"""Declares the metrics of the rollout: of all questions, of each tool, and of training's batches.

No metric is named after an agent, since fork ids would make the names unbounded.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ray.rllib.core import DEFAULT_MODULE_ID

from rllib_arpo.core.figures import (
    ExaminedNode,
    examined_nodes,
    initial_entropies,
    is_solved,
    longest_path,
    new_contexts,
    num_turns,
    path_tool_calls,
    tool_calls,
)
from rllib_arpo.core.metric import Metric, mean, measure, quantile
from rllib_arpo.core.token_counts import all_path_tokens
from rllib_arpo.core.tree import QuestionTree, StopReason, ToolCall, ToolStatus, Trajectory
from rllib_arpo.rollout.messages import SampledQuestion
from rllib_arpo.rollout.question_stream import Batch


@dataclass(frozen=True, slots=True)
class Rollout:
    """The facts from which the metrics of an iteration, or of an evaluation, are computed.

    Attributes:
        questions: the sampled questions, at least one.
        nodes: their examined tool responses.
        seconds: wall time.
        num_given_up: questions that could not be sampled.
    """

    questions: Sequence[SampledQuestion]
    nodes: Sequence[ExaminedNode]
    seconds: float
    num_given_up: int


@dataclass(frozen=True, slots=True)
class ToolUse:
    """The calls of one tool, and the nodes after its responses."""

    calls: Sequence[ToolCall]
    nodes: Sequence[ExaminedNode]

    def number(self, status: ToolStatus) -> int:
        return sum(call.status is status for call in self.calls)

    def latencies(self) -> list[float]:
        return [call.latency_s for call in self.calls]


def each(
    values: Callable[[QuestionTree], Iterable[float]], over: Callable[[Iterable[float]], float | None] = mean
) -> Callable[[Rollout], float | None]:
    """Reduces the values of all trees together by `over`, by default to their mean."""
    return lambda rollout: over(value for question in rollout.questions for value in values(question.tree))


def leaves(values: Callable[[Trajectory], float]) -> Callable[[Rollout], float | None]:
    """The mean of a value over the trajectories."""
    return each(lambda tree: map(values, tree.trajectories))


def nodes(
    values: Callable[[Iterable[ExaminedNode]], Iterable[float]],
    over: Callable[[Iterable[float]], float | None] = mean,
) -> Callable[[Rollout], float | None]:
    """Reduces the values of all questions' nodes by `over`, by default to their mean."""
    return lambda rollout: over(values(rollout.nodes))


def sums(value: Callable[[SampledQuestion], float]) -> Callable[[Rollout], float]:
    """The sum of a value over the questions."""
    return lambda rollout: sum(map(value, rollout.questions))


def _rises(nodes: Iterable[ExaminedNode]) -> list[float]:
    """dH after the responses of trajectories from the prompt."""
    return [node.decision.delta for node in nodes if node.from_prompt]


def _rose(nodes: Iterable[ExaminedNode]) -> list[bool]:
    return [delta > 0 for delta in _rises(nodes)]


def _fork_depths(tree: QuestionTree) -> list[int]:
    return [fork.num_inherited_turns for fork in tree.forks()]


def _forked_nodes(tree: QuestionTree) -> list[int]:
    return [len({(fork.parent, fork.num_inherited_turns) for fork in tree.forks()})]


_REWARD = "reward per TRAJECTORY (RLlib's own sum over agents would be M times that)"
_ACCURACY = "mean over all trajectories, also those left out of training"
_LENGTH = "turns on each question's longest path"
_LEVELS = "nats a token, means over the windows of trajectories from the prompt"
_DELTA = "dH over their nodes: mean and quantiles"
_LATENCY = "seconds that a call took, quantiles"
_TOOL_DELTA = "as above, after this tool's responses"
_CALLS = "executed calls; `text` counts turns that a world, program or agent answered"
_TURNS = "unique turns"
_DEPTH = "turns before the fork, over children"

#: Metrics of training and of evaluation.
ROLLOUT_METRICS: tuple[Metric[Rollout], ...] = (
    Metric("episode_return_mean", _REWARD, each(QuestionTree.returns), console=("reward", "6.3f")),
    Metric("episode_return_min", _REWARD, each(QuestionTree.returns, min)),
    Metric("episode_return_max", _REWARD, each(QuestionTree.returns, max)),
    Metric("accuracy", _ACCURACY, leaves(lambda t: t.accuracy), console=("acc", "4.2f")),
    Metric("format_valid", "share of the trajectories", leaves(lambda t: t.format_valid)),
    *(
        Metric(
            f"stop/{reason}",
            "share of the trajectories that ended for this reason",
            leaves(lambda leaf, reason=reason: leaf.stop_reason == reason),  # type: ignore[misc]
        )
        for reason in StopReason
    ),
    Metric("pass_at_k", "share of the questions that a trajectory solves", each(lambda t: [is_solved(t)])),
    Metric("num_episodes", "questions", lambda rollout: len(rollout.questions), reduce="sum"),
    Metric("episode_len_mean", _LENGTH, each(lambda t: [longest_path(t)])),
    Metric("episode_len_min", _LENGTH, each(lambda t: [longest_path(t)], min)),
    Metric("episode_len_max", _LENGTH, each(lambda t: [longest_path(t)], max)),
    Metric("generated_tokens_per_trajectory", "generated tokens of a whole path", each(all_path_tokens)),
    Metric("tool_calls_per_trajectory", "calls of a whole path", each(path_tool_calls), console=("tools", "3.1f")),
    Metric(
        "entropy/initial",
        _LEVELS,
        lambda rollout: mean(e for q in rollout.questions for e in initial_entropies(q.tree, q.entropy_window)),
    ),
    Metric("entropy/after_tool", _LEVELS, nodes(lambda found: [n.entropy for n in found if n.from_prompt])),
    Metric("entropy/delta", _DELTA, nodes(_rises), console=("dH", "+6.3f")),
    Metric("entropy/delta_p10", _DELTA, nodes(_rises, quantile(0.1))),
    Metric("entropy/delta_p50", _DELTA, nodes(_rises, quantile(0.5))),
    Metric("entropy/delta_p90", _DELTA, nodes(_rises, quantile(0.9))),
    Metric("entropy/rise_share", "share of these nodes with dH > 0", nodes(_rose)),
    Metric("forks_per_question", "children of nodes", each(lambda t: [len(t.forks())]), console=("forks", "4.1f")),
    Metric("fork_events_per_question", "nodes that have children", each(_forked_nodes)),
    Metric(
        "fork_rate",
        "forked nodes / nodes that were decided while budget remained",
        nodes(lambda found: [n.decision.children > 0 for n in found if n.decision.eligible]),
    ),
    Metric("fork_depth_mean", _DEPTH, each(_fork_depths)),
    Metric("fork_depth_p10", _DEPTH, each(_fork_depths, quantile(0.1))),
    Metric("fork_depth_p90", _DEPTH, each(_fork_depths, quantile(0.9))),
    Metric(
        "initial_rollouts_per_question",
        "N, trajectories from the prompt without top-ups",
        each(lambda t: [len(t.initial())]),
    ),
    Metric("topped_up_per_question", "top-ups", each(lambda t: [sum(leaf.topped_up for leaf in t.trajectories)])),
    Metric(
        "prefix_tokens_reused",
        "tokens of forks' prefixes that came from the engine's prefix cache",
        sums(lambda question: question.prefix_tokens_reused),
    ),
    Metric(
        "forks_refused",
        "forks that the environment refused by an error ([faults](rllib.md#faults))",
        sums(lambda question: question.forks_refused),
    ),
    Metric(
        "questions_given_up",
        "questions that could not be sampled ([faults](rllib.md#faults))",
        lambda rollout: rollout.num_given_up,
    ),
    Metric(
        "requests_refused",
        "requests of [agents](agent.md#an-agent) that were not answered",
        sums(lambda question: question.requests_refused),
    ),
    Metric(
        "new_contexts",
        "new conversations that agents began; shared ones count once",
        each(lambda t: [new_contexts(t)], sum),
    ),
    Metric("tool_calls_executed", "calls; shared ones count once", each(lambda t: [len(tool_calls(t))], sum)),
    Metric(
        "generated_tokens",
        "tokens, also of refused forks; shared ones count once",
        sums(lambda question: question.num_generated_tokens),
    ),
    Metric(
        "tokens_per_second",
        "generated tokens, while the batch was sampled",
        lambda rollout: sum(question.num_generated_tokens for question in rollout.questions) / rollout.seconds,
    ),
)

#: Metrics below "tools/<name>/" of every offered tool: one that nobody called has 0 calls, and no latency.
TOOL_METRICS: tuple[Metric[ToolUse], ...] = (
    Metric("calls", _CALLS, lambda use: len(use.calls)),
    Metric("errors", _CALLS, lambda use: use.number(ToolStatus.ERROR)),
    Metric("timeouts", _CALLS, lambda use: use.number(ToolStatus.TIMEOUT)),
    Metric("latency_p50", _LATENCY, lambda use: quantile(0.5)(use.latencies())),
    Metric("latency_p99", _LATENCY, lambda use: quantile(0.99)(use.latencies())),
    Metric("entropy_delta", _TOOL_DELTA, lambda use: mean(_rises(use.nodes))),
    Metric("entropy_delta_p10", _TOOL_DELTA, lambda use: quantile(0.1)(_rises(use.nodes))),
    Metric("entropy_delta_p50", _TOOL_DELTA, lambda use: quantile(0.5)(_rises(use.nodes))),
    Metric("entropy_delta_p90", _TOOL_DELTA, lambda use: quantile(0.9)(_rises(use.nodes))),
    Metric("entropy_rise_share", _TOOL_DELTA, lambda use: mean(_rose(use.nodes))),
)


def total(value: Callable[[SampledQuestion], float]) -> Callable[[Batch], float]:
    """The sum of a value over all questions that were sampled for a batch."""
    return lambda batch: sum(map(value, batch.asked))


_turns = total(lambda question: num_turns(question.tree))


def _lifetime(name: str, of: Callable[[Batch], float]) -> Metric[Batch]:
    return Metric(name, "the same since the run began", of, reduce="lifetime_sum")


#: Metrics of training only.
BATCH_METRICS: tuple[Metric[Batch], ...] = (
    Metric("resample_rounds", "rounds of `max_resample_rounds`", lambda batch: batch.resample_rounds),
    Metric("questions_dropped", "questions without signal after the last round", lambda batch: batch.num_dropped),
    Metric(
        "questions_prioritized",
        "questions asked again for their pass rate (`prioritized_share`)",
        lambda batch: batch.num_prioritized,
    ),
    Metric("questions_requeued", "questions asked again for `max_weight_lag`", lambda batch: batch.num_requeued),
    Metric(
        "weight_lag_max",
        "updates between the weights that sampled the oldest token and the weights being trained",
        lambda batch: batch.weight_lag,
    ),
    Metric("num_env_steps_sampled", _TURNS, _turns, reduce="sum"),
    Metric(f"num_module_steps_sampled/{DEFAULT_MODULE_ID}", _TURNS, _turns, reduce="sum"),
    _lifetime("num_env_steps_sampled_lifetime", _turns),
    _lifetime(f"num_module_steps_sampled_lifetime/{DEFAULT_MODULE_ID}", _turns),
    _lifetime("num_episodes_lifetime", total(lambda q: 1)),
    _lifetime("generated_tokens_lifetime", total(lambda q: q.num_generated_tokens)),
    _lifetime("tool_calls_executed_lifetime", total(lambda q: len(tool_calls(q.tree)))),
)

#: The names under `env_runners/` that ARPO reports, in training and evaluation: metrics, and the groups above them.
#: RLlib would let a callback's metric replace one of these, or fail if one is a group and the other a number.
OWN_NAMES = {metric.name.split("/")[0] for table in (ROLLOUT_METRICS, BATCH_METRICS) for metric in table} | {"tools"}


def rollout_metrics(questions: Sequence[SampledQuestion], seconds: float, num_given_up: int = 0) -> dict[str, float]:
    """The values of `ROLLOUT_METRICS`, and of `TOOL_METRICS` for each tool; `Rollout` explains the arguments."""
    calls = [call for question in questions for call in tool_calls(question.tree)]
    found = [node for question in questions for node in examined_nodes(question.tree, question.entropy_window)]
    metrics = measure(ROLLOUT_METRICS, Rollout(questions, found, seconds, num_given_up))
    for name in sorted({call.name for call in calls}.union(*(question.tools_offered for question in questions))):
        use = ToolUse([call for call in calls if call.name == name], [node for node in found if node.tool == name])
        metrics |= measure(TOOL_METRICS, use, f"tools/{name}/")
    return metrics


def nested(metrics: Mapping[str, float]) -> dict[str, Any]:
    """{"a/b": 1} as {"a": {"b": 1}}, the shape of RLlib's result dict."""
    result: dict[str, Any] = {}
    for name, value in metrics.items():
        *groups, last = name.split("/")
        inner = result
        for group in groups:
            inner = inner.setdefault(group, {})
        inner[last] = value
    return result
