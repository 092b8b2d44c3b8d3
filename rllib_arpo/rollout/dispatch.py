"""Hands numbered questions to the env runners of a group and brings back every one of them, or the cause."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence

import ray
from ray.rllib.env.env_runner_group import EnvRunnerGroup

from rllib_arpo.rollout.questions import SampledQuestion

logger = logging.getLogger("rllib_arpo")

#: So many failures in a row end the run.
MAX_FAILURES_IN_A_ROW = 3
#: Seconds beyond the questions' own deadlines after which an env runner is taken for hung.
HANG_SLACK_S = 300.0


def sample_on_group(
    group: EnvRunnerGroup,
    numbers: Sequence[int],
    *,
    evaluation: bool,
    weight_version: int,
    restore: Callable[[], object],
) -> list[SampledQuestion]:
    """Samples the questions with these numbers on all healthy env runners; questions of a failed one are retried.

    Args:
        group: the training or the evaluation env runners.
        numbers: of the questions, distinct.
        evaluation: whether the evaluation configuration applies.
        weight_version: the version that every engine must have.
        restore: brings restarted env runners back, with the right weights; called after each failure.

    Returns:
        One result per number, in the order of `numbers`.

    Raises:
        ValueError: bad data or a bug in the environment; not retried.
        RuntimeError: three failures in a row, with the last cause.
    """
    kwargs = {"evaluation": evaluation, "weight_version": weight_version}
    if group.num_remote_env_runners() == 0:
        return group.local_env_runner.sample_questions(numbers, **kwargs)
    results: dict[int, SampledQuestion] = {}
    failures = 0
    while missing := [number for number in numbers if number not in results]:
        sampled, error = _sample_once(group, missing, kwargs)
        results |= {s.number: s for s in sampled}
        failures = failures + 1 if error is not None else 0
        if error is None:
            continue
        if failures == MAX_FAILURES_IN_A_ROW:
            raise RuntimeError(
                f"Sampling failed {failures} times in a row; {len(missing)} questions are missing. Last cause: {error}"
            ) from error
        logger.warning("An env runner failed (%s); its questions are sampled again.", _first_line(error))
        _wait_for_env_runners(group, restore)
    return [results[number] for number in numbers]


def _sample_once(
    group: EnvRunnerGroup, numbers: list[int], kwargs: dict
) -> tuple[list[SampledQuestion], BaseException | None]:
    """One round over the healthy env runners; the first failure among them, if any."""
    runners = group.healthy_env_runner_ids()
    if not runners:
        return [], RuntimeError("No env runner is healthy.")
    shares = [numbers[i :: len(runners)] for i in range(min(len(runners), len(numbers)))]
    # `foreach_env_runner` drops failed calls; the actor manager below it also returns their errors.
    outcomes = group._worker_manager.foreach_actor(
        "sample_questions",
        kwargs=[{"numbers": share, **kwargs} for share in shares],
        remote_actor_ids=runners[: len(shares)],
        timeout_seconds=_time_limit(group, max(map(len, shares))),
    )
    sampled, errors = [], []
    for outcome in outcomes:
        if outcome.ok:
            sampled += outcome.get()
        else:
            errors.append(outcome.get())
    for error in errors:
        cause = error.cause if isinstance(error, ray.exceptions.RayTaskError) else error
        if isinstance(cause, ValueError):
            raise ValueError(str(cause)) from error
    if not errors and len(sampled) < len(numbers):
        errors.append(
            TimeoutError(f"An env runner did not answer in time: {len(sampled)} of {len(numbers)} questions.")
        )
    return sampled, (errors[0] if errors else None)


def _time_limit(group: EnvRunnerGroup, num_questions: int) -> float:
    """Every question has its own deadline, so a share cannot take longer than its waves of questions."""
    config = group._remote_config
    waves = math.ceil(num_questions / config.num_envs_per_env_runner)
    return waves * config.question_deadline_s + HANG_SLACK_S


def _wait_for_env_runners(group: EnvRunnerGroup, restore: Callable[[], object]) -> None:
    """Restores what can be restored now; waits only while no env runner at all is healthy."""
    limit = time.monotonic() + group._remote_config.env_runner_restore_timeout_s
    restore()
    while not group.healthy_env_runner_ids() and time.monotonic() < limit:
        time.sleep(1.0)
        restore()


def _first_line(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}".strip().splitlines()[0]
