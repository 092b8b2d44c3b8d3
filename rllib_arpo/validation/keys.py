"""Checks the names of all keys, and the values of this package's options."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ray.rllib.algorithms.algorithm_config import AlgorithmConfig

from rllib_arpo.learner.guards import GUARD_LIMITS
from rllib_arpo.options.rules import POSITIVE, one_of
from rllib_arpo.options.tables import OPTIONS
from rllib_arpo.validation.rllib_keys import OF_EVALUATION

#: Keys that RLlib itself puts into a configuration's dict.
RLLIB_KEYS = {"class"}


def check_keys(config: AlgorithmConfig) -> None:
    """Checks the names of all keys, and the values of this package's options.

    Raises:
        ValueError: one sentence that names the first key that is unknown or breaks its rule.
    """
    defaults = type(config)()
    for values, where in ((vars(config), ""), (config.evaluation_config or {}, OF_EVALUATION)):
        _check_names(values, defaults, where)
        _check_options(values, where)


def _check_names(keys: Iterable[str], defaults: AlgorithmConfig, where: str) -> None:
    """`update_from_dict` sets any key; a key that a new configuration does not have is a typing error."""
    known = [key for key in vars(defaults) if not key.startswith("_")]
    for key in keys:
        if not key.startswith("_") and key not in RLLIB_KEYS and not hasattr(defaults, key):
            raise ValueError(f"{where}{key!r} is not a key of {type(defaults).__name__}.{did_you_mean(key, known)}")


def did_you_mean(key: str, known: Sequence[str]) -> str:
    """A question that ends an error message; empty where no known key is near."""
    nearest = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    return f" Did you mean {nearest[0]!r}?" if nearest else ""


def _check_options(values: Mapping[str, Any], where: str) -> None:
    for key, option in OPTIONS.items():
        if key in values and option.rule is not None:
            option.rule.check(where + key, values[key])
    for metric, limit in values.get("guards", {}).items():
        one_of(*GUARD_LIMITS).check(f"{where}guards", metric)
        if limit is not None:
            POSITIVE.check(f"{where}guards[{metric!r}]", limit)
