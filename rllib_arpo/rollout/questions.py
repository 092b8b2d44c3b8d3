"""Many questions in flight: every environment takes the next question as soon as the one before has ended.

These are functions and not methods of the env runner, since Ray runs every actor that has an `async` method in an
event loop of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Any

from ray.rllib.env.multi_agent_episode import MultiAgentEpisode

from rllib_arpo.engine.engine import Engine
from rllib_arpo.envs.forkable_env import ForkableMultiAgentEnv
from rllib_arpo.rollout.engine_loop import EngineLoop
from rllib_arpo.rollout.episodes import tree_to_episode
from rllib_arpo.rollout.metrics import QuestionStats, question_stats
from rllib_arpo.rollout.settings import RolloutSettings
from rllib_arpo.rollout.tree_sampler import TreeSampler


@dataclass(frozen=True, slots=True)
class SampledQuestion:
    """One question with its tree, as the driver gets it. `number` is the question's number in its task."""

    number: int
    episode: MultiAgentEpisode
    stats: QuestionStats


@dataclass(frozen=True, slots=True)
class Rollout:
    """What an env runner sampled, and what callbacks logged meanwhile (the state of a `MetricsLogger`)."""

    questions: list[SampledQuestion]
    metrics: dict[str, Any]


@dataclass(frozen=True, slots=True)
class RolloutError:
    """Why an env runner could not sample; `retry`: whether a restarted env runner might."""

    message: str
    traceback: str
    retry: bool


async def run_rollout(
    numbers: Sequence[int],
    envs: Sequence[ForkableMultiAgentEnv],
    engine: Engine,
    engine_thread: Executor,
    settings: RolloutSettings,
    on_progress: Callable[..., None] = lambda **_amounts: None,
) -> list[SampledQuestion]:
    """Samples the questions with these numbers, as many at a time as there are `envs`; results in their order.

    Args:
        on_progress: is called with what has just been done: `tokens=`, `forks=`, `questions=`.

    Raises:
        Exception: the first error of an environment or of the engine, which ends all questions.
    """
    results: dict[int, SampledQuestion] = {}
    waiting = iter(numbers)

    async def work(env: ForkableMultiAgentEnv, loop: EngineLoop) -> None:
        for number in waiting:
            sampler = TreeSampler(env, loop, settings, engine.vocab_size, on_progress)
            tree, counts = await sampler.sample(number)
            results[number] = SampledQuestion(number, tree_to_episode(tree), question_stats(tree, counts))
            on_progress(questions=1)

    async with EngineLoop(engine, engine_thread) as loop:
        try:
            async with asyncio.TaskGroup() as group:
                for env in envs[: len(numbers)]:
                    group.create_task(work(env, loop))
        except BaseExceptionGroup as errors:
            raise _first(errors) from errors
    return [results[number] for number in numbers]


def _first(errors: BaseExceptionGroup) -> BaseException:
    """The first error itself, out of the groups that task groups wrap around it."""
    error = errors.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error
