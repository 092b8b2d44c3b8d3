"""The possible verdicts on a key inherited from RLlib, and rules that only such keys need."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from rllib_arpo.options.rules import NOT_NEGATIVE, POSITIVE, Rule, at_least

if TYPE_CHECKING:
    from rllib_arpo.arpo_config import ARPOConfig


@dataclass(frozen=True, slots=True)
class Used:
    """`by` reads the key; `rule` checks what RLlib itself does not check.

    Attributes:
        in_evaluation: whether evaluation reads the key, so that `evaluation_config` may have a value of its own.
    """

    by: str
    rule: Rule | None = None
    in_evaluation: bool = True


@dataclass(frozen=True, slots=True)
class Refused:
    """A value that would mislead: `reason` completes the sentence "key=value: ...".

    Attributes:
        allowed: the values that state what ARPO does anyway; None: only the default.
        unless: the configurations in which the key has a meaning; None: there are none.
    """

    reason: str
    allowed: Rule | None = None
    unless: Callable[[ARPOConfig], bool] | None = None


@dataclass(frozen=True, slots=True)
class Harmless:
    """A key without effect here, whatever its value; `reason` says why."""

    reason: str


Verdict = Used | Refused | Harmless


def is_evaluation(config: ARPOConfig) -> bool:
    return config.in_evaluation


def has_no_remote_env_runner(config: ARPOConfig) -> bool:
    return config.num_env_runners == 0


def _is_learning_rate(value: Any) -> bool:
    if not isinstance(value, list | tuple):
        return POSITIVE.test(value)
    if len(value) < 2 or not all(isinstance(point, list | tuple) and len(point) == 2 for point in value):
        return False
    times, rates = zip(*value, strict=True)
    if not all(map(NOT_NEGATIVE.test, times)) or not all(map(NOT_NEGATIVE.test, rates)):
        return False
    return times[0] == 0 and all(a < b for a, b in pairwise(times)) and any(rates)


def _is_subclass(value: Any, base: type) -> bool:
    return isinstance(value, type) and issubclass(value, base)


def _is_learner_class(value: Any) -> bool:
    from rllib_arpo.learner.arpo_torch_learner import ARPOTorchLearner

    return value is None or _is_subclass(value, ARPOTorchLearner)


def _is_env_runner_class(value: Any) -> bool:
    from rllib_arpo.rollout.env_runner import ARPOEnvRunner

    return _is_subclass(value, ARPOEnvRunner)


def _is_callback(value: Any) -> bool:
    return value is None or callable(value) or (isinstance(value, list | tuple) and all(map(callable, value)))


def _is_only_policy(value: Any) -> bool:
    """Names of policies, or a dict to specifications: "default_policy" alone, with nothing of its own."""
    if not isinstance(value, dict | list | tuple | set | frozenset) or set(value) != {"default_policy"}:
        return False
    spec = value["default_policy"] if isinstance(value, dict) else None
    parts = spec if isinstance(spec, list | tuple) else list(vars(spec).values()) if spec is not None else []
    return not any(parts)


LEARNING_RATE = Rule(
    "a finite number > 0, or a schedule [[0, lr], [timestep, lr], ...] of numbers >= 0 at growing timesteps",
    _is_learning_rate,
)
CPUS_OR_AUTO = Rule('a finite number >= 0, or "auto"', lambda value: value == "auto" or NOT_NEGATIVE.test(value))
RESTARTS = Rule("an integer >= 0, or -1 for no limit", at_least(-1).test)
CALLBACK = Rule("a function, or a list of functions", _is_callback)
LEARNER_CLASS = Rule("a subclass of ARPOTorchLearner", _is_learner_class)
ENV_RUNNER_CLASS = Rule("a subclass of ARPOEnvRunner", _is_env_runner_class)
ONLY_POLICY = Rule('"default_policy" alone', _is_only_policy)
