"""The names under which MLflow gets the metrics of a result: groups that sort what people watch first to the top.

MLflow's charts view makes a section of all names that agree up to their last "/", and sorts sections and charts by
name. So a group is one section, and the "/" of a path becomes a space.
"""

from __future__ import annotations

from fnmatch import fnmatchcase
from functools import lru_cache

from rllib_arpo.tracking.console import TIMER_LABELS

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
