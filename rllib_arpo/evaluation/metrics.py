"""From records to metrics: every metric of an arm with its interval, and the differences between two arms."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from rllib_arpo.core.pass_at_k import pass_at_k
from rllib_arpo.evaluation.bootstrap import Estimate, estimate_all, paired_differences
from rllib_arpo.evaluation.records import QuestionRecord, SampleRecord

PASS = "pass_at_"
#: Metric -> its value for one sample; None: the metric does not apply to that question.
SAMPLE_METRICS: dict[str, Callable[[SampleRecord], float | None]] = {
    f"{PASS}1": lambda s: float(s.correct),
    "exact_match": lambda s: s.exact_match,
    "f1": lambda s: s.f1,
    "reward": lambda s: s.reward,
    "format_valid": lambda s: float(s.format_valid),
    "tool_calls": lambda s: float(s.tool_calls),
    "tool_calls_failed": lambda s: float(s.tool_calls_failed),
    "response_tokens": lambda s: float(s.response_tokens),
    "truncated": lambda s: float(s.truncated),
    "masked": lambda s: float(s.masked),
}


@dataclass(frozen=True, slots=True)
class ArmMetrics:
    """The metrics of one arm.

    Attributes:
        question_ids: [Q].
        values: metric -> [Q] or [Q, S]; a metric leaves out the questions that lack it.
        commits: the commits that evaluated the questions.
    """

    question_ids: tuple[str, ...]
    values: dict[str, np.ndarray]
    commits: tuple[str | None, ...]

    def estimates(self) -> dict[str, Estimate]:
        """Metric -> its mean and interval."""
        return estimate_all(self.values)


def arm_metrics(records: Iterable[tuple[QuestionRecord, str | None]]) -> ArmMetrics:
    """Turns records (with their commits) into arrays; drops the transcripts."""
    ids, commits = [], []
    columns: dict[str, list[list[float | None]]] = {name: [] for name in SAMPLE_METRICS}
    for record, commit in records:
        ids.append(record.question_id)
        commits.append(commit)
        for name, metric in SAMPLE_METRICS.items():
            columns[name].append([metric(sample) for sample in record.samples])
    values = {name: np.array([row for row in column if None not in row], float) for name, column in columns.items()}
    return ArmMetrics(tuple(ids), values | _passes(values[f"{PASS}1"]), tuple(dict.fromkeys(commits)))


def differences(first: ArmMetrics, second: ArmMetrics) -> dict[str, Estimate]:
    """Metric -> the mean of second - first over their questions, with its interval.

    Raises:
        ValueError: they asked different questions.
    """
    if first.question_ids != second.question_ids:
        raise ValueError("Rows with different questions cannot be compared.")
    return paired_differences(first.values, second.values)


def _passes(correct: np.ndarray) -> dict[str, np.ndarray]:
    """pass@2 .. pass@S, each [Q], of [Q, S] correct (1) or wrong (0) samples."""
    if correct.ndim < 2:
        return {}
    n = correct.shape[1]
    return {f"{PASS}{k}": np.array([pass_at_k(n, int(c), k) for c in correct.sum(axis=1)]) for k in range(2, n + 1)}
