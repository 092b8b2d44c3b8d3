"""Converts a config or a result to MLflow's flat keys, short strings and floats; names metrics in groups.

MLflow's charts view makes a section of all names that agree up to their last "/", and sorts sections and charts by
name. So a group is one section, with what people watch first at the top, and the "/" of a path becomes a space.
"""

import hashlib
import numbers
import re
from collections.abc import Callable, Iterator, Mapping
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Any

from rllib_arpo.redaction import without_secrets
from rllib_arpo.tracking.console import TIMER_LABELS

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


#: Group -> {path in the result: name in the group}. A "*" ends a pattern and stands for any rest, also in the name.
GROUPS: dict[str, dict[str, str]] = {
    "1 progress": {
        "env_runners/accuracy": "accuracy",
        "env_runners/episode_return_mean": "reward",
        "env_runners/pass_at_k": "pass_at_k",
        "env_runners/format_valid": "format_valid",
        "env_runners/tool_calls_executed_lifetime": "tool calls so far",
        "evaluation/env_runners/accuracy": "evaluation accuracy",
        "evaluation/env_runners/episode_return_mean": "evaluation reward",
        "evaluation/env_runners/pass_at_k": "evaluation pass_at_k",
        "evaluation/env_runners/format_valid": "evaluation format_valid",
        "learners/default_policy/num_alarms": "alarms",
    },
    "2 rollout": {
        "env_runners/episode_*": "episode_*",
        "env_runners/generated_tokens*": "generated_tokens*",
        "env_runners/num_*": "num_*",
        "env_runners/questions_*": "questions_*",
        "env_runners/resample_rounds": "resample_rounds",
        "env_runners/response_tokens_mean": "response_tokens_mean",
        "env_runners/stop/*": "stop *",
        "env_runners/tokens_per_second": "tokens_per_second",
        "env_runners/weight_lag_max": "weight_lag_max",
    },
    "3 entropy and forks": {
        "env_runners/entropy/*": "entropy *",
        "env_runners/fork*": "fork*",
        "env_runners/initial_rollouts_per_question": "initial_rollouts_per_question",
        "env_runners/topped_up_per_question": "topped_up_per_question",
        "env_runners/prefix_tokens_reused": "prefix_tokens_reused",
        "env_runners/forks_refused": "forks_refused",
        "env_runners/decisive/*": "decisive steps *",
        "env_runners/other/*": "other steps *",
    },
    "4 tools": {
        "env_runners/tool_calls_executed": "tool_calls_executed",
        "env_runners/requests_refused": "requests_refused",
        "env_runners/new_contexts": "new_contexts",
        "env_runners/tool_calls_per_trajectory": "tool_calls_per_trajectory",
        "env_runners/tools/*": "*",
    },
    "5 learner": {
        "learners/default_policy/default_optimizer_learning_rate": "learning_rate",
        "learners/default_policy/*": "*",
    },
    "6 seconds": {
        **{f"timers/{timer}": timer for timer in TIMER_LABELS},
        "time_this_iter_s": "iteration",
        "time_total_s": "total",
    },
    "7 evaluation": {
        "evaluation/env_runners/*": "*",
        "evaluation/*": "*",
    },
}
#: Gets, under its own path, what no group names: metrics of users, and what a new RLlib adds.
OTHER = "8 other"
#: RLlib's own timers, throughputs and bookkeeping, and what only repeats a metric of a group. A path that a group names
#: without a "*" stays.
LEFT_OUT = (
    "timers/*",
    "perf/*",
    "env_runner_group/*",
    "learners/__all_modules__/*",
    "*_throughput/*",
    "env_runners/num_module_steps_*",
    "learners/default_policy/gradients_default_optimizer_global_norm",
    "learners/default_policy/num_module_steps_*",
    "learners/default_policy/num_*trainable_parameters",
    "learners/default_policy/weights_seq_no",
    "iterations_since_restore",
    "num_env_steps_sampled_lifetime",
    "num_training_step_calls_per_iteration",
    "time_since_restore",
    "timestamp",
    "training_iteration",
)
_EXACT = {
    path: f"{group}/{name}" for group, names in GROUPS.items() for path, name in names.items() if not path.endswith("*")
}
_PREFIXES = {
    path[:-1]: (group, name) for group, names in GROUPS.items() for path, name in names.items() if path.endswith("*")
}


@lru_cache(maxsize=4096)
def metric_name(path: str, all_metrics: bool = False) -> str | None:
    """The name of the metric at a path of the result ("env_runners/entropy/delta" -> "3 entropy and forks/entropy
    delta"); None if it is left out.

    Args:
        all_metrics: nothing is left out; what otherwise would be is in the group `OTHER`.
    """
    if path in _EXACT:
        return _EXACT[path]
    if any(fnmatchcase(path, pattern) for pattern in LEFT_OUT):
        return f"{OTHER}/{path}" if all_metrics else None
    for prefix, (group, name) in _PREFIXES.items():
        if path.startswith(prefix):
            return f"{group}/{name.replace('*', path.removeprefix(prefix).replace('/', ' '))}"
    return f"{OTHER}/{path}"
