"""Hands numbered questions to the env runners of a group and brings back every one of them, or the cause."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import ray
from ray.rllib.env.env_runner_group import EnvRunnerGroup

from rllib_arpo.rollout.questions import Rollout, RolloutError

if TYPE_CHECKING:
    from rllib_arpo.arpo_config import ARPOConfig

logger = logging.getLogger("rllib_arpo")

#: So many failures in a row end the run.
MAX_FAILURES_IN_A_ROW = 3
#: Seconds beyond the questions' own deadlines after which an env runner is taken for hung.
HANG_SLACK_S = 300.0


def sample_on_group(
    group: EnvRunnerGroup,
    numbers: Sequence[int],
    config: ARPOConfig,
    *,
    weight_version: int,
    restore: Callable[[], object],
) -> list[Rollout]:
    """Samples the questions with these numbers on all healthy env runners; questions of a failed one are retried.

    Args:
        group: the training or the evaluation env runners.
        numbers: of the questions, distinct.
        config: the training or the evaluation configuration.
        weight_version: the version that every engine must have.
        restore: brings restarted env runners back, with the right weights; called after each failure.

    Returns:
        What the env runners sampled, in no particular order; together every number once.

    Raises:
        ValueError: bad data or a bug in the environment; not retried.
        RuntimeError: three failures in a row, with the last cause.
    """
    kwargs = {"evaluation": config.in_evaluation, "weight_version": weight_version}
    if group.num_remote_env_runners() == 0:
        return [_value(group.local_env_runner.rollout(numbers, **kwargs))]
    rollouts: list[Rollout] = []
    missing, failures = list(numbers), 0
    while missing:
        sampled, error = _sample_once(group, missing, config, kwargs)
        rollouts += sampled
        done = {question.number for rollout in sampled for question in rollout.questions}
        missing = [number for number in missing if number not in done]
        failures = failures + 1 if error else 0
        if failures == MAX_FAILURES_IN_A_ROW:
            raise RuntimeError(
                f"Sampling failed {failures} times in a row; {len(missing)} questions are missing. Last cause: {error}"
            )
        if error:
            logger.warning("An env runner failed (%s); its questions are sampled again.", error.splitlines()[0])
            _wait_for_env_runners(group, config, restore)
    return rollouts


def _sample_once(
    group: EnvRunnerGroup, numbers: list[int], config: ARPOConfig, kwargs: dict
) -> tuple[list[Rollout], str | None]:
    """One round over the healthy env runners: what came back, and the last failure among them, if any."""
    runners = group.healthy_env_runner_ids()
    if not runners:
        return [], "no env runner is healthy"
    runners = runners[: len(numbers)]
    shares = [numbers[i :: len(runners)] for i in range(len(runners))]
    # `foreach_env_runner` drops failed calls in silence; the actor manager below it returns their errors.
    outcomes = group._worker_manager.foreach_actor(
        "rollout",
        kwargs=[{"numbers": share, **kwargs} for share in shares],
        remote_actor_ids=runners,
        timeout_seconds=_time_limit(config, max(map(len, shares))),
    )
    by_runner = {outcome.actor_id: outcome for outcome in outcomes}
    sampled, error = [], None
    for runner in runners:
        outcome = by_runner.get(runner)
        if outcome is None:
            error = f"env runner {runner} did not answer in time"
            _restart(group, runner)
        elif not outcome.ok:
            error = f"env runner {runner} died: {outcome.get()}"
        elif isinstance(value := outcome.get(), RolloutError) and value.retry:
            error = f"env runner {runner}: {value.message}\n{value.traceback}"
            _restart(group, runner)
        else:
            sampled.append(_value(value))
    return sampled, error


def _value(outcome: Rollout | RolloutError) -> Rollout:
    """The rollout, or the error that trying again would not mend."""
    if isinstance(outcome, RolloutError):
        raise (RuntimeError if outcome.retry else ValueError)(outcome.message)
    return outcome


def _restart(group: EnvRunnerGroup, runner: int) -> None:
    """Has Ray start a hung or broken env runner, and with it its engine, anew."""
    manager = group._worker_manager
    ray.kill(manager.actors()[runner], no_restart=False)
    manager.set_actor_state(runner, healthy=False)


def _time_limit(config: ARPOConfig, num_questions: int) -> float:
    """Every question has its own deadline, so a share cannot take longer than its waves of questions."""
    waves = math.ceil(num_questions / config.num_envs_per_env_runner)
    return waves * config.question_deadline_s + HANG_SLACK_S


def _wait_for_env_runners(group: EnvRunnerGroup, config: ARPOConfig, restore: Callable[[], object]) -> None:
    """Restores what can be restored now; waits only while no env runner at all is healthy."""
    limit = time.monotonic() + config.env_runner_restore_timeout_s
    restore()
    while not group.healthy_env_runner_ids() and time.monotonic() < limit:
        time.sleep(1.0)
        restore()
