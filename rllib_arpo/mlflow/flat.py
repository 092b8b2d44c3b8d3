"""Converts a config or a result to MLflow's flat keys, short strings and floats.

MLflow's charts view puts keys that agree up to their last "/" into one section: `env_runners`, `env_runners/entropy`.
"""

import numbers
import re
from collections.abc import Iterator, Mapping
from typing import Any

from rllib_arpo.redaction import without_secrets

#: MLflow's limits (mlflow/utils/validation.py).
MAX_KEY_LENGTH = 250
MAX_PARAM_LENGTH = 6000

#: Top-level keys of a result that are not measurements, or measure RLlib and Ray.
NOT_METRICS = frozenset({"config", "env_runner_group", "perf", "pid", "timestamp", "training_iteration"})
#: In paths of RLlib's own throughputs, each of which would be a section of its own.
THROUGHPUT = "_throughput/"


def mlflow_key(name: str) -> str:
    """Turns `name` into a key that every MLflow server accepts.

    "/" separates levels. Word characters, "-", "." and spaces stay; any other character becomes "_", also ":", which
    servers on Windows refuse. Levels that are empty, "." or ".." become "_". A longer name keeps its last 250
    characters.
    """
    levels = [re.sub(r"[^\w.\- ]", "_", level) for level in name.split("/")]
    return "/".join("_" if level in ("", ".", "..") else level for level in levels)[-MAX_KEY_LENGTH:]


def flat_params(config: Mapping[str, Any]) -> dict[str, str]:
    """A config's leaves without secrets, keyed by path ("env_config/seed"), cut to 6,000 characters each."""
    return {mlflow_key(path): str(value)[:MAX_PARAM_LENGTH] for path, value in _leaves(without_secrets(config))}


def flat_metrics(result: Mapping[str, Any]) -> dict[str, float]:
    """The numbers in a result, keyed by their path ("env_runners/entropy/delta"), without booleans.

    A list of one number counts as the number, because Tune writes arrays as lists.
    """
    measured = {key: value for key, value in result.items() if key not in NOT_METRICS}
    numeric = ((path, _as_float(value)) for path, value in _leaves(measured) if THROUGHPUT not in path)
    return {mlflow_key(path): value for path, value in numeric if value is not None}


def _leaves(tree: Mapping[Any, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        below = f"{path}/{key}" if path else str(key)
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, below)
        else:
            yield below, value


def _as_float(value: Any) -> float | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, list) and len(value) == 1:
        return _as_float(value[0])
    return float(value) if isinstance(value, numbers.Real) else None
