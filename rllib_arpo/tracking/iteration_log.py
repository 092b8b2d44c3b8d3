"""The report of an iteration: RLlib's metrics of rollout and learner, and warnings, each once."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.utils.metrics import (
    ENV_RUNNER_RESULTS,
    EPISODE_LEN_MAX,
    EPISODE_LEN_MEAN,
    EPISODE_LEN_MIN,
    EPISODE_RETURN_MAX,
    EPISODE_RETURN_MIN,
    LEARNER_RESULTS,
    NUM_ENV_STEPS_SAMPLED,
    NUM_ENV_STEPS_SAMPLED_LIFETIME,
    NUM_EPISODES,
    NUM_EPISODES_LIFETIME,
    NUM_MODULE_STEPS_SAMPLED,
    NUM_MODULE_STEPS_SAMPLED_LIFETIME,
)
from ray.rllib.utils.metrics.metrics_logger import MetricsLogger

from rllib_arpo.learner.guards import GUARD_LIMITS, alarms
from rllib_arpo.rollout.messages import SampledQuestion
from rllib_arpo.rollout.metrics import remove

logger = logging.getLogger("rllib_arpo")

#: Under `env_runners/`: what was made since the run began; RLlib has no counters for them.
TOOL_CALLS_LIFETIME, GENERATED_TOKENS_LIFETIME = "tool_calls_executed_lifetime", "generated_tokens_lifetime"
#: Under `learners/default_policy/`: how many guards (`learner/guards.py`) have crossed their limits.
NUM_ALARMS = "num_alarms"


class IterationLog:
    """Logs into an algorithm's `MetricsLogger`, and warns of what a user should know."""

    def __init__(self, metrics: MetricsLogger):
        self._metrics = metrics
        self._alarms: set[str] = set()
        self._told: set[tuple[object, ...]] = set()

    def rollout(self, sampled: Sequence[SampledQuestion], metrics: Mapping[str, float]) -> None:
        """Args: `metrics`: those of the rollout of `sampled`, "group/name" -> value."""
        for name, value in metrics.items():
            self._metrics.log_value((ENV_RUNNER_RESULTS, *name.split("/")), value, reduce="mean", window=1)
        for name, value in _rllibs_own(sampled).items():
            self._metrics.log_value((ENV_RUNNER_RESULTS, name), value, reduce="mean", window=1)
        turns = sum(s.stats.num_turns for s in sampled)
        module_steps = NUM_MODULE_STEPS_SAMPLED, DEFAULT_MODULE_ID
        for key, value in (((NUM_ENV_STEPS_SAMPLED,), turns), ((NUM_EPISODES,), len(sampled)), (module_steps, turns)):
            self._metrics.log_value((ENV_RUNNER_RESULTS, *key), value, reduce="sum")
        for key, value in (
            ((NUM_ENV_STEPS_SAMPLED_LIFETIME,), turns),
            ((NUM_MODULE_STEPS_SAMPLED_LIFETIME, DEFAULT_MODULE_ID), turns),
            ((NUM_EPISODES_LIFETIME,), len(sampled)),
            ((TOOL_CALLS_LIFETIME,), metrics["tool_calls_executed"]),
            ((GENERATED_TOKENS_LIFETIME,), metrics["generated_tokens"]),
        ):
            self._metrics.log_value((ENV_RUNNER_RESULTS, *key), value, reduce="lifetime_sum")

    def callbacks(self, logged: Sequence[dict[str, Any]], own: Mapping[str, float]) -> None:
        """Logs what callbacks logged on the env runners, but for names that metrics of ARPO bear (`own`)."""
        for metrics in logged:
            for name in own:
                if remove(metrics, name.split("/")) and self._is_new("name", name):
                    logger.warning("A callback logs %r, which is the name of a metric of ARPO: it is left out.", name)
            self._metrics.aggregate([metrics], key=ENV_RUNNER_RESULTS)

    def errors(self, sampled: Sequence[SampledQuestion]) -> None:
        """Tells of what environments and tools raised, once for each kind of error and tool."""
        for question in sampled:
            for error in question.errors:
                if self._is_new("error", error.tool, error.kind, error.refused_fork):
                    end = "The question forks no more" if error.refused_fork else "Such trajectories are masked"
                    metric = "forks_refused" if error.refused_fork else "stop/error"
                    logger.warning("%s, %s. %s (%s).", question.ref, error, end, metric)

    def alarms(self, guards: Mapping[str, float]) -> None:
        """Warns when a metric of the learner crosses its guard's limit, once until it is back within."""
        learner = (LEARNER_RESULTS, DEFAULT_MODULE_ID)
        # A batch without a token to train on has no means; to `peek`, a default of None is none.
        metrics = {name: self._metrics.peek((*learner, name), default=math.nan) for name in GUARD_LIMITS}
        found = alarms({name: value for name, value in metrics.items() if not math.isnan(value)}, guards)
        for name in found.keys() - self._alarms:
            logger.warning("%s", found[name])
        self._alarms = set(found)
        self._metrics.log_value((*learner, NUM_ALARMS), len(found), window=1)

    def _is_new(self, *what: object) -> bool:
        is_new = what not in self._told
        self._told.add(what)
        return is_new


def _rllibs_own(sampled: Sequence[SampledQuestion]) -> dict[str, float]:
    """Metrics of RLlib's users: returns of trajectories, and the turns on the longest path of each question."""
    returns = [reward for s in sampled for reward in s.stats.rewards]
    lengths = [len(s.episode) for s in sampled]
    return {
        EPISODE_RETURN_MIN: min(returns),
        EPISODE_RETURN_MAX: max(returns),
        EPISODE_LEN_MIN: min(lengths),
        EPISODE_LEN_MEAN: sum(lengths) / len(lengths),
        EPISODE_LEN_MAX: max(lengths),
    }
