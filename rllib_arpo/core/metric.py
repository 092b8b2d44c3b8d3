"""Declares metrics: a metric's value and its row in the documentation follow from one object."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Generic, TypeVar

import numpy as np

Source = TypeVar("Source")


@dataclass(frozen=True, slots=True)
class Metric(Generic[Source]):
    """A number of an iteration's result.

    Attributes:
        name: its path in its part of the result, such as "entropy/delta" below `env_runners`.
        words: its meaning, for the documentation. Neighbours with the same words share a line.
        of: computes it; if this returns None (a mean over nothing), the result lacks the metric, or has NaN.
        reduce: how RLlib reduces it, if it is below `env_runners`. "mean": keeps the last value; "sum": sums over the
            training steps of an iteration; "lifetime_sum": sums over the run.
        console: label and format ("acc", "4.2f") of a rollout's metric on the terminal's line of an iteration; None:
            the line lacks it.
    """

    name: str
    words: str
    of: Callable[[Source], float | None]
    reduce: str = "mean"
    console: tuple[str, str] | None = None


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
