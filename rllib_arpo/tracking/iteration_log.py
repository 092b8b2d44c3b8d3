"""Logs an iteration's metrics of rollout and learner with RLlib, and warns of each problem once."""

from __future__ import annotations

import logging
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from ray.rllib.core import DEFAULT_MODULE_ID
from ray.rllib.utils.metrics import ENV_RUNNER_RESULTS, LEARNER_RESULTS
from ray.rllib.utils.metrics.metrics_logger import MetricsLogger

from rllib_arpo.core.branching import has_fixed_threshold
from rllib_arpo.core.figures import examined_nodes
from rllib_arpo.core.tree import MASKED_STOP_REASONS, StopReason, Trajectory
from rllib_arpo.learner.metrics import GUARD_LIMITS, NUM_ALARMS, alarms
from rllib_arpo.rollout.messages import SampledQuestion, TrajectoryError
from rllib_arpo.rollout.metric_table import BATCH_METRICS, ROLLOUT_METRICS
from rllib_arpo.tracking.first_batch import first_batch_warnings

if TYPE_CHECKING:
    from rllib_arpo.arpo_config import ARPOConfig

logger = logging.getLogger("rllib_arpo")

#: Metric below `env_runners` -> how RLlib reduces it.
REDUCTIONS = {metric.name: metric.reduce for table in (ROLLOUT_METRICS, BATCH_METRICS) for metric in table}
#: Endings that are faults of a tool or an environment.
ENDED_IN_ERROR = (StopReason.ERROR, StopReason.BROKEN_TOOL, StopReason.UNREAD_VERDICT)
#: Iterations in a row without a signal after which a run warns.
WARN_WITHOUT_SIGNAL = 3
#: If a larger share of the decided tool responses forks, the entropy hardly chooses.
MAX_FORK_RATE = 0.6


class IterationLog:
    """Logs into an algorithm's `MetricsLogger`, and warns the user.

    Attributes:
        num_without_signal: iterations in a row without a signal. A checkpoint keeps it.
    """

    def __init__(self, metrics: MetricsLogger):
        self._metrics = metrics
        self._alarms: set[str] = set()
        self._warned: set[object] = set()
        self.num_without_signal = 0

    def batch(self, sampled: Sequence[SampledQuestion], metrics: Mapping[str, float], config: ARPOConfig) -> None:
        """Logs the `metrics` of the questions that were sampled for an update, and warns of their problems."""
        self.rollout(metrics)
        self.forks(metrics.get("fork_rate", 0.0), config.branching, config.branch_threshold)
        self.errors(sampled, metrics.get("questions_given_up", 0.0), config.max_error_share)

    def first_batch(self, sampled: Sequence[SampledQuestion], config: ARPOConfig, has_signal: bool) -> None:
        """Warns before the first update if there is nothing to learn (no `has_signal`), or no fork."""
        trees = [question.tree for question in sampled]
        nodes = [node for question in sampled for node in examined_nodes(question.tree, question.entropy_window)]
        for warning in first_batch_warnings(trees, nodes, config.to_dict(), has_signal, _why_no_signal(sampled)):
            logger.warning("%s", warning)

    def rollout(self, metrics: Mapping[str, float]) -> None:
        """`metrics` maps paths, such as "entropy/delta", to values."""
        for name, value in metrics.items():
            key, reduce = (ENV_RUNNER_RESULTS, *name.split("/")), REDUCTIONS.get(name, "mean")
            self._metrics.log_value(key, value, reduce=reduce, window=1 if reduce == "mean" else None)

    def errors(self, sampled: Sequence[SampledQuestion], num_given_up: float, max_share: float) -> None:
        """Warns of errors in environments and tools, once for each cause.

        Args:
            num_given_up: how many questions could not be asked.

        Raises:
            RuntimeError: a larger share than `max_share` of the trajectories ended in an error, or of the questions
                could not be asked.
        """
        if num_given_up > max_share * (len(sampled) + num_given_up):
            asked = f"{num_given_up:g} of {len(sampled) + num_given_up:g} questions"
            raise RuntimeError(f"{asked} could not be asked (max_error_share={max_share:g}); the log says why.")
        warn_of_errors(sampled, self._warned)
        causes = [cause for question in sampled for cause in _causes(question)]
        share = len(causes) / max(len(_trajectories(sampled)), 1)
        if share > max_share:
            [(cause, _)] = Counter(causes).most_common(1)
            much = f"{share:.0%} of the trajectories ended in an error (max_error_share={max_share:g})"
            raise RuntimeError(f"{much}, for example: {cause}.")

    def signal(self, sampled: Sequence[SampledQuestion], has_signal: bool, max_without: int | None) -> None:
        """Warns, or ends the run, after several iterations without a signal.

        Args:
            has_signal: whether some question of the update on `sampled` had rewards that differ.

        Raises:
            RuntimeError: `max_without` iterations in a row had no signal.
        """
        self.num_without_signal = 0 if has_signal else self.num_without_signal + 1
        times = f"{self.num_without_signal} iterations in a row" if self.num_without_signal > 1 else "an iteration"
        sentence = f"No question has rewards that differ, for {times}"
        if max_without is not None and self.num_without_signal >= max_without:
            raise RuntimeError(f"{sentence} (max_iterations_without_signal): {_why_no_signal(sampled)}.")
        if self.num_without_signal == WARN_WITHOUT_SIGNAL:
            logger.warning("%s: %s.", sentence, _why_no_signal(sampled))

    def forks(self, rate: float, branching: str, threshold: float | str) -> None:
        """Warns once if most tool responses exceed a threshold. Args: `rate`: share of decided nodes that forked."""
        is_fixed = has_fixed_threshold(branching, threshold)
        if is_fixed and rate > MAX_FORK_RATE and _is_new("forks", self._warned):
            much = f"While forks were left, {rate:.0%} of the tool responses forked (fork_rate)"
            logger.warning("%s, so the entropy hardly chooses: raise branch_threshold.", much)

    def alarms(self, guards: Mapping[str, float]) -> None:
        """Warns if a metric of the learner crosses its guard's limit; it warns again only after the metric was back."""
        learner = (LEARNER_RESULTS, DEFAULT_MODULE_ID)
        # A batch without a token to train on has no means. `peek` treats a default of None as no default.
        metrics = {name: self._metrics.peek((*learner, name), default=math.nan) for name in GUARD_LIMITS}
        found = alarms({name: value for name, value in metrics.items() if not math.isnan(value)}, guards)
        for name in found.keys() - self._alarms:
            logger.warning("%s", found[name])
        self._alarms = set(found)
        self._metrics.log_value((*learner, NUM_ALARMS.name), NUM_ALARMS.of(found), window=1)


def warn_of_errors(sampled: Sequence[SampledQuestion], warned: set[object]) -> None:
    """Warns of errors in environments and tools, once for each cause, which it adds to `warned`."""
    for question in sampled:
        for error in question.errors:
            if _is_new(error, warned):
                refused = error.stop_reason is None
                end = "The question gets no more forks" if refused else "Such trajectories are masked"
                metric = "forks_refused" if refused else f"stop/{error.stop_reason}"
                logger.warning("%s, %s. %s (%s).", question.ref, error, end, metric)


def _is_new(what: object, warned: set[object]) -> bool:
    is_new = what not in warned
    warned.add(what)
    return is_new


def _causes(question: SampledQuestion) -> list[TrajectoryError | str]:
    """For each trajectory that ended in an error the error, or the ending if the environment does not say why."""
    known = {error.agent_id: error for error in question.errors if error.stop_reason is not None}
    return [
        known.get(trajectory.agent_id) or f"stop/{trajectory.stop_reason}"
        for trajectory in question.tree.trajectories
        if trajectory.stop_reason in ENDED_IN_ERROR
    ]


def _why_no_signal(sampled: Sequence[SampledQuestion]) -> str:
    """The likely cause, and what to do."""
    trajectories = _trajectories(sampled)
    [(reason, count)] = Counter(trajectory.stop_reason for trajectory in trajectories).most_common(1)
    half = len(trajectories) / 2
    if reason in MASKED_STOP_REASONS and count > half:
        return f"most trajectories are masked (stop/{reason})"
    if sum(trajectory.format_valid for trajectory in trajectories) < half:
        return f"most break the format (stop/{reason}): cold-start the model, or give it examples or more tokens"
    if sum(trajectory.accuracy for trajectory in trajectories) > half:
        return "the questions are too easy: ask others, or set max_resample_rounds"
    return "the questions are too hard or the policy has collapsed: ask easier ones, sample more rollouts, or lower lr"


def _trajectories(sampled: Sequence[SampledQuestion]) -> list[Trajectory]:
    return [trajectory for question in sampled for trajectory in question.tree.trajectories]
