"""Declares metrics: a metric's value, its row in the documentation and its name in MLflow follow from one object."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Generic, TypeVar

import numpy as np

Source = TypeVar("Source")

#: Groups of metrics, each a section of MLflow's charts. MLflow sorts them by name, so people find progress on top.
PROGRESS = "1 progress"
ROLLOUT = "2 rollout"
FORKS = "3 entropy and forks"
TOOLS = "4 tools"
LEARNER = "5 learner"
SECONDS = "6 seconds"
EVALUATION = "7 evaluation"
#: Holds metrics that belong to no other group, under their own paths: a user's metrics, or new ones of RLlib.
OTHER = "8 other"


@dataclass(frozen=True, slots=True)
class Metric(Generic[Source]):
    """A number of an iteration's result.

    Attributes:
        name: its path in its part of the result, such as "entropy/delta" below `env_runners`.
        group: its section in MLflow; None: MLflow does not get it, since it repeats another metric.
        words: its meaning, for the documentation. Neighbours with the same words share a line.
        of: computes it; if this returns None (a mean over nothing), the result lacks the metric.
        label: its name within the group; "": its path, with spaces. Metrics of a tool have neither label nor group.
        reduce: how RLlib reduces it, if it is below `env_runners`. "mean": keeps the last value; "sum": sums over the
            training steps of an iteration; "lifetime_sum": sums over the run.
        console: label and format ("acc", "4.2f") of a rollout's metric on the terminal's line of an iteration; None:
            the line lacks it.
    """

    name: str
    group: str | None
    words: str
    of: Callable[[Source], float | None]
    label: str = ""
    reduce: str = "mean"
    console: tuple[str, str] | None = None

    @property
    def mlflow_name(self) -> str:
        """Its name in MLflow, within its group."""
        return self.label or self.name.replace("/", " ")


def measure(metrics: Iterable[Metric[Source]], source: Source, prefix: str = "") -> dict[str, float]:
    """The values of the metrics that `source` has, by their names after `prefix` ("tools/search/")."""
    values = ((prefix + metric.name, metric.of(source)) for metric in metrics)
    return {name: value for name, value in values if value is not None}


def metric_lines(metrics: Sequence[Metric[Source]], prefix: str = "") -> list[str]:
    """Lines of a Markdown list: the names of metrics after `prefix`, and their meaning."""
    return [
        f"- {', '.join(f'`{prefix}{metric.name}`' for metric in neighbours)}: {words}"
        for words, neighbours in groupby(metrics, key=lambda metric: metric.words)
    ]


def number_at(result: Mapping[str, Any], *path: str) -> float | None:
    """The number at a path in a nested result; None if there is none, or it is NaN.

    Args:
        path: keys; "a/b" stands for "a", "b".
    """
    value: Any = result
    for key in "/".join(path).split("/"):
        value = value.get(key) if isinstance(value, Mapping) else None
    return None if value is None or math.isnan(value) else float(value)


def mean(values: Iterable[float]) -> float | None:
    """The mean of some values; None without values."""
    array = np.array([*values], np.float64)
    return float(array.mean()) if len(array) else None


def quantile(q: float) -> Callable[[Iterable[float]], float | None]:
    """A function that returns this quantile of some values, or None without values."""

    def of(values: Iterable[float]) -> float | None:
        array = np.array([*values], np.float64)
        return float(np.quantile(array, q)) if len(array) else None

    return of
