"""Converts a config or a result to MLflow's flat keys, short strings and floats, and sorts metrics into groups.

MLflow's charts view puts names that agree up to their last "/" into one section, and sorts sections and charts by name.
So a group is a section, the metrics that people watch come first, and the other "/" of a path become spaces.
"""

import numbers
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Any

from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.utils.metrics import ENV_RUNNER_RESULTS, EVALUATION_RESULTS, LEARNER_RESULTS, TIMERS

from rllib_arpo.core.metric import EVALUATION, FORKS, LEARNER, OTHER, PROGRESS, SECONDS, TOOLS, Metric
from rllib_arpo.learner.metrics import NUM_ALARMS, UPDATE_METRICS
from rllib_arpo.redaction import without_secrets
from rllib_arpo.rollout.metric_table import BATCH_METRICS, ROLLOUT_METRICS
from rllib_arpo.tracking.console import TIMER_LABELS

#: MLflow's limits (mlflow/utils/validation.py).
MAX_KEY_LENGTH = 250
MAX_PARAM_LENGTH = 6000

#: Top-level keys of a result that are not measurements.
NOT_METRICS = frozenset({"config", "pid"})


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


def flat_metrics(result: Mapping[str, Any], name_of: Callable[[str], str | None] = str) -> dict[str, float]:
    """The numbers in a result, keyed by their path ("env_runners/entropy/delta"), without booleans.

    A list of one number counts as the number, because Tune writes arrays as lists.

    Args:
        name_of: gives each path its name; None leaves the path out.
    """
    measured = {key: value for key, value in result.items() if key not in NOT_METRICS}
    numeric = ((name_of(path), _as_float(value)) for path, value in _leaves(measured))
    return {mlflow_key(name): value for name, value in numeric if name is not None and value is not None}


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


_ROLLOUT, _LEARNER = ENV_RUNNER_RESULTS, f"{LEARNER_RESULTS}/{DEFAULT_MODULE_ID}"


def _declared(metrics: Iterable[Metric[Any]], prefix: str) -> dict[str, str]:
    return {f"{prefix}/{metric.name}": f"{metric.group}/{metric.mlflow_name}" for metric in metrics if metric.group}


#: Path in the result -> name with its group.
NAMES = {
    **_declared((*ROLLOUT_METRICS, *BATCH_METRICS), _ROLLOUT),
    **_declared((*UPDATE_METRICS, NUM_ALARMS), _LEARNER),
    **{
        f"{EVALUATION_RESULTS}/{_ROLLOUT}/{metric.name}": f"{PROGRESS}/evaluation {metric.mlflow_name}"
        for metric in ROLLOUT_METRICS
        if metric.group == PROGRESS
    },
    f"{_LEARNER}/default_optimizer_learning_rate": f"{LEARNER}/learning_rate",
    **{f"{TIMERS}/{timer}": f"{SECONDS}/{timer}" for timer in TIMER_LABELS},
    "time_this_iter_s": f"{SECONDS}/iteration",
    "time_total_s": f"{SECONDS}/total",
}
#: How other paths begin -> how their names begin. None leaves a path out: RLlib's timers, throughputs and counts, and
#: copies of other metrics.
PREFIXES = {
    f"{_ROLLOUT}/tools/": f"{TOOLS}/",
    f"{_ROLLOUT}/decisive/": f"{FORKS}/decisive steps ",
    f"{_ROLLOUT}/other/": f"{FORKS}/other steps ",
    f"{_ROLLOUT}/num_module_steps_": None,
    f"{_LEARNER}/gradients_default_optimizer_global_norm": None,
    f"{_LEARNER}/num_module_steps_": None,
    f"{_LEARNER}/num_trainable_parameters": None,
    f"{_LEARNER}/num_non_trainable_parameters": None,
    f"{_LEARNER}/weights_seq_no": None,
    f"{_LEARNER}/": f"{LEARNER}/",
    f"{LEARNER_RESULTS}/__all_modules__/": None,
    f"{EVALUATION_RESULTS}/{_ROLLOUT}/": f"{EVALUATION}/",
    f"{EVALUATION_RESULTS}/": f"{EVALUATION}/",
    f"{TIMERS}/": None,
    "perf/": None,
    "env_runner_group/": None,
    "iterations_since_restore": None,
    "num_env_steps_sampled_lifetime": None,
    "num_training_step_calls_per_iteration": None,
    "time_since_restore": None,
    "timestamp": None,
    "training_iteration": None,
}


@lru_cache(maxsize=4096)
def metric_name(path: str) -> str | None:
    """The MLflow name for a path of the result; None leaves it out.

    For example "env_runners/entropy/delta" becomes "3 entropy and forks/entropy delta".
    """
    if path in NAMES:
        return NAMES[path]
    if "_throughput/" in path:
        return None
    for beginning, name in PREFIXES.items():
        if path.startswith(beginning):
            return name and name + path.removeprefix(beginning).replace("/", " ")
    return f"{OTHER}/{path}"
