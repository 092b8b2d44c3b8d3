"""Checks each key by itself: this package's options, and the keys inherited from RLlib."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rllib_arpo.learner.guards import GUARD_LIMITS
from rllib_arpo.options.rules import POSITIVE, one_of, shown
from rllib_arpo.options.tables import OPTIONS, TRAINING
from rllib_arpo.validation.inherited import INHERITED, KEYWORDS
from rllib_arpo.validation.verdicts import Refused, Used

if TYPE_CHECKING:
    from rllib_arpo.arpo_config import ARPOConfig

#: Keys that RLlib itself puts into a configuration's dict.
RLLIB_KEYS = {"class"}
#: The words before a key of `evaluation_config` in an error message.
OF_EVALUATION = "evaluation_config: "
#: Options of `adaptive_rollout()` that only the driver reads, for training.
ONLY_IN_TRAINING = {"max_weight_lag", "entropy_baseline_quantile", "entropy_baseline_questions"}


def check_inherited(config: ARPOConfig) -> None:
    """Checks RLlib's keys.

    Raises:
        ValueError: one sentence that names the first key that is refused or breaks its rule.
    """
    defaults = type(config)()
    _check_inherited(config, defaults, vars(config))
    if config.evaluation_config is not None:
        _check_read_in_evaluation(config)
        evaluation = config.get_evaluation_config_object()
        _check_inherited(evaluation, defaults, config.evaluation_config, OF_EVALUATION)


def check_keys(config: ARPOConfig) -> None:
    """Checks the names of all keys, and the values of this package's options.

    Raises:
        ValueError: one sentence that names the first key that is unknown or breaks its rule.
    """
    defaults = type(config)()
    _check_names(vars(config), defaults)
    _check_options(vars(config))
    if config.evaluation_config is not None:
        _check_names(config.evaluation_config, defaults, OF_EVALUATION)
        _check_options(config.evaluation_config, OF_EVALUATION)


def _check_inherited(config: ARPOConfig, defaults: ARPOConfig, values: Mapping[str, Any], where: str = "") -> None:
    for key, verdict in INHERITED.items():
        if key not in values:
            continue
        name, value = where + KEYWORDS.get(key, key), values[key]
        if isinstance(verdict, Used) and verdict.rule is not None:
            verdict.rule.check(name, value)
        elif isinstance(verdict, Refused) and not _is_as_usual(verdict, value, getattr(defaults, key), config):
            raise ValueError(f"{name}={shown(value)}: {verdict.reason}.")


def _check_read_in_evaluation(config: ARPOConfig) -> None:
    """A key of `evaluation_config` that evaluation never reads may only repeat the value of training."""
    unread = {key for key, verdict in INHERITED.items() if isinstance(verdict, Used) and not verdict.in_evaluation}
    for key, value in config.evaluation_config.items():
        if key in unread | TRAINING.keys() | ONLY_IN_TRAINING and value != getattr(config, key):
            name = OF_EVALUATION + KEYWORDS.get(key, key)
            raise ValueError(
                f"{name}={shown(value)}: evaluation does not read it; set it outside of evaluation_config."
            )


def _is_as_usual(verdict: Refused, value: Any, default: Any, config: ARPOConfig) -> bool:
    if verdict.unless is not None and verdict.unless(config):
        return True
    return value == default if verdict.allowed is None else verdict.allowed.test(value)


def _check_names(keys: Iterable[str], defaults: ARPOConfig, where: str = "") -> None:
    """`update_from_dict` sets any key; a key that a new configuration does not have is a typing error."""
    known = [key for key in vars(defaults) if not key.startswith("_")]
    for key in keys:
        if not key.startswith("_") and key not in RLLIB_KEYS and not hasattr(defaults, key):
            raise ValueError(f"{where}{key!r} is not a key of {type(defaults).__name__}.{did_you_mean(key, known)}")


def did_you_mean(key: str, known: Sequence[str]) -> str:
    """A question that ends an error message; empty where no known key is near."""
    nearest = difflib.get_close_matches(key, known, n=1, cutoff=0.5)
    return f" Did you mean {nearest[0]!r}?" if nearest else ""


def _check_options(values: Mapping[str, Any], where: str = "") -> None:
    for key, option in OPTIONS.items():
        if key in values and option.rule is not None:
            option.rule.check(where + key, values[key])
    for metric, limit in values.get("guards", {}).items():
        one_of(*GUARD_LIMITS).check(f"{where}guards", metric)
        if limit is not None:
            POSITIVE.check(f"{where}guards[{metric!r}]", limit)
