"""Computes the metrics of an arm from its record, and lists the paper's suites of tasks."""

import math
from collections.abc import Callable, Iterable, Sequence

import numpy as np

from rllib_arpo.core.pass_at_k import is_correct, pass_at_k
from rllib_arpo.core.tree import TRUNCATED_STOP_REASONS, ToolStatus, Trajectory
from rllib_arpo.envs.support.validation import check_known
from rllib_arpo.record.question import BenchmarkAnswer, RecordedQuestion

PASS = "pass_at_"


def num_calls(sample: Trajectory, *statuses: ToolStatus) -> float:
    """How many tool calls of a sample had one of these outcomes."""
    return float(sum(turn.tool_call is not None and turn.tool_call.status in statuses for turn in sample.turns))


#: Metric -> its value for a sample (a trajectory without forks) and its answer; None: it does not fit the question.
SAMPLE_METRICS: dict[str, Callable[[Trajectory, BenchmarkAnswer], float | None]] = {
    f"{PASS}1": lambda sample, _: float(is_correct(sample.accuracy)),
    "exact_match": lambda _, answer: answer.exact_match,
    "f1": lambda _, answer: answer.f1,
    "reward": lambda sample, _: math.fsum(turn.reward for turn in sample.turns),
    "format_valid": lambda sample, _: float(sample.format_valid),
    "tool_calls": lambda sample, _: num_calls(sample, *ToolStatus),
    "tool_calls_failed": lambda sample, _: num_calls(sample, ToolStatus.ERROR, ToolStatus.TIMEOUT),
    "response_tokens": lambda sample, _: float(sum(len(turn.token_ids) for turn in sample.turns)),
    "truncated": lambda sample, _: float(sample.stop_reason in TRUNCATED_STOP_REASONS),
    "masked": lambda sample, _: float(not sample.counts),
}
#: Suite -> its tasks, in the paper's order.
SUITES: dict[str, tuple[str, ...]] = {
    "math": ("aime24", "aime25", "math500", "gsm8k", "math"),
    "knowledge": ("webwalker", "hotpotqa", "2wiki", "musique", "bamboogle"),
    "deepsearch": ("gaia", "hle", "simpleqa", "xbench", "webwalker"),
}


def suite_tasks(suites: Sequence[str]) -> list[str]:
    """The tasks of these suites, each once.

    Raises:
        ValueError: there is no such suite.
    """
    check_known(suites, SUITES, "suite")
    return list(dict.fromkeys(task for suite in suites for task in SUITES[suite]))


#: Metric -> [Q] or [Q, S]; questions without the metric are left out.
Metrics = dict[str, np.ndarray]


def arm_metrics(questions: Iterable[RecordedQuestion]) -> Metrics:
    """Turns the questions of an arm into arrays, without their transcripts."""
    columns: dict[str, list[list[float | None]]] = {name: [] for name in SAMPLE_METRICS}
    for question in questions:
        samples = [(sample, question.answers[sample.agent_id]) for sample in question.tree.trajectories]
        for name, metric in SAMPLE_METRICS.items():
            columns[name].append([metric(*sample) for sample in samples])
    values = {name: np.array([row for row in column if None not in row], float) for name, column in columns.items()}
    return values | _passes(values[f"{PASS}1"])


def _passes(correct: np.ndarray) -> Metrics:
    """pass@2 .. pass@S, each [Q], of [Q, S] correct (1) or wrong (0) samples."""
    if correct.ndim < 2:
        return {}
    n = correct.shape[1]
    return {f"{PASS}{k}": np.array([pass_at_k(n, int(c), k) for c in correct.sum(axis=1)]) for k in range(2, n + 1)}
