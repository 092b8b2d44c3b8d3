"""Checks the names of all keys, the values of this package's options, and RLlib's keys."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from ray.rllib.algorithms.algorithm_config import AlgorithmConfig

from rllib_arpo.learner.guards import GUARD_LIMITS
from rllib_arpo.options.rules import POSITIVE, one_of, shown
from rllib_arpo.options.tables import OPTIONS
from rllib_arpo.validation.rllib_keys import (
    ALLOWED,
    HARMLESS,
    HINTS,
    UNREAD_IN_EVALUATION,
    USED,
    USED_IN_TRAINING,
    keyword,
)

#: Keys that RLlib itself puts into a configuration's dict.
RLLIB_KEYS = {"class"}
#: The words before a key of `evaluation_config` in an error message.
OF_EVALUATION = "evaluation_config: "


def check_keys(config: AlgorithmConfig) -> None:
    """Checks all keys, each by itself.

    Raises:
        ValueError: one sentence that names the first key that is unknown, is refused or breaks its rule.
    """
    defaults = type(config)()
    _check_names(vars(config), defaults)
    _check_values(config, vars(config), defaults)
    if config.evaluation_config is not None:
        _check_names(config.evaluation_config, defaults, OF_EVALUATION)
        _check_read_in_evaluation(config)
        _check_values(config.get_evaluation_config_object(), config.evaluation_config, defaults, OF_EVALUATION)


def _check_names(keys: Iterable[str], defaults: AlgorithmConfig, where: str = "") -> None:
    """`update_from_dict` sets any key; a key that a new configuration does not have is a typing error."""
    known = [key for key in vars(defaults) if not key.startswith("_")]
    for key in keys:
        if not key.startswith("_") and key not in RLLIB_KEYS and not hasattr(defaults, key):
            raise ValueError(f"{where}{key!r} is not a key of {type(defaults).__name__}.{did_you_mean(key, known)}")


def did_you_mean(key: str, known: Sequence[str]) -> str:
    """A question that ends an error message; empty where no known key is near."""
    nearest = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    return f" Did you mean {nearest[0]!r}?" if nearest else ""


def _check_values(
    config: AlgorithmConfig, values: Mapping[str, Any], defaults: AlgorithmConfig, where: str = ""
) -> None:
    rules = {key: option.rule for key, option in OPTIONS.items()} | USED | USED_IN_TRAINING
    for key, default in vars(defaults).items():
        if key not in values or key in HARMLESS:
            continue
        name, value = where + keyword(key), values[key]
        if key not in rules:
            _check_unchanged(config, key, name, value, default)
        elif (rule := rules[key]) is not None:
            rule.check(name, value)
    for metric, limit in values.get("guards", {}).items():
        one_of(*GUARD_LIMITS).check(f"{where}guards", metric)
        if limit is not None:
            POSITIVE.check(f"{where}guards[{metric!r}]", limit)


def _check_unchanged(config: AlgorithmConfig, key: str, name: str, value: Any, default: Any) -> None:
    # In this order: a stored configuration has a tuple as its policy, which RLlib's default cannot be compared with.
    if not (key in ALLOWED and ALLOWED[key](config, value)) and value != default:
        usual = f"ARPO does not use this key of RLlib; leave it at {shown(default)}"
        raise ValueError(f"{name}={shown(value)}: {HINTS.get(key, usual)}.")


def _check_read_in_evaluation(config: AlgorithmConfig) -> None:
    """A key of `evaluation_config` that evaluation never reads may only repeat the value of training."""
    for key, value in config.evaluation_config.items():
        if key in UNREAD_IN_EVALUATION and value != getattr(config, key):
            name = OF_EVALUATION + keyword(key)
            raise ValueError(
                f"{name}={shown(value)}: evaluation does not read it; set it outside of evaluation_config."
            )
