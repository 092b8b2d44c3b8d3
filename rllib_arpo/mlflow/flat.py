"""Converts RLlib's nested dictionaries to MLflow's format: flat keys of a small alphabet, short strings, floats."""

from __future__ import annotations

import hashlib
import numbers
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from rllib_arpo.redaction import without_secrets

#: MLflow's limits (mlflow/utils/validation.py).
MAX_KEY_LENGTH = 250
MAX_PARAM_LENGTH = 6000

#: Top-level result keys that are not measurements: Tune repeats the config in each result; a pid is only a name.
NOT_METRICS = frozenset({"config", "pid"})


def mlflow_key(name: str) -> str:
    """`name` as a key that every MLflow server accepts.

    Characters other than word characters, "-", "." and space become "_" ("/" separates levels; ":" is refused by
    servers on Windows), empty, "." and ".." levels become "_", and a name of more than 250 characters keeps its
    head and a hash of the whole.
    """
    levels = [re.sub(r"[^\w.\- ]", "_", level) for level in name.split("/")]
    key = "/".join("_" if level in ("", ".", "..") else level for level in levels)
    return key if len(key) <= MAX_KEY_LENGTH else f"{key[: MAX_KEY_LENGTH - 9]}_{_short_hash(name)}"


def flat_params(config: Mapping[str, Any]) -> dict[str, str]:
    """A config's leaves without secrets, keyed by path ("env_config/seed"), as at most 6,000 characters each."""
    return _with_keys((path, str(value)[:MAX_PARAM_LENGTH]) for path, value in _leaves(without_secrets(config)))


def flat_metrics(result: Mapping[str, Any], name_of: Callable[[str], str | None] = str) -> dict[str, float]:
    """The numeric leaves of a result, keyed by their path ("env_runners/entropy/delta"); booleans are left out.

    A list of one number counts as the number: Tune writes arrays as lists.

    Args:
        name_of: gives each path its name; None leaves it out.
    """
    measured = {key: value for key, value in result.items() if key not in NOT_METRICS}
    numeric = ((name_of(path), _as_float(value)) for path, value in _leaves(measured))
    return _with_keys((name, value) for name, value in numeric if name is not None and value is not None)


def _leaves(tree: Mapping[Any, Any], path: str = "") -> Iterator[tuple[str, Any]]:
    for key, value in tree.items():
        below = f"{path}/{key}" if path else str(key)
        if isinstance(value, Mapping) and value:
            yield from _leaves(value, below)
        else:
            yield below, value


def _with_keys(items: Iterator[tuple[str, Any]]) -> dict[str, Any]:
    """Keyed by `mlflow_key`; of two names that would share a key, the later one gets a hash of its own name."""
    keyed: dict[str, Any] = {}
    for name, value in items:
        key = mlflow_key(name)
        keyed[key if key not in keyed else f"{key[: MAX_KEY_LENGTH - 9]}_{_short_hash(name)}"] = value
    return keyed


def _as_float(value: Any) -> float | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, list) and len(value) == 1:
        return _as_float(value[0])
    return float(value) if isinstance(value, numbers.Real) else None


def _short_hash(name: str) -> str:
    return hashlib.sha1(name.encode()).hexdigest()[:8]
