"""Many questions in flight: every environment takes the next question as soon as the one before has ended.

These are functions and not methods of the env runner, since Ray runs every actor that has an `async` method in an
event loop of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass

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


async def sample_questions(
    numbers: Sequence[int],
    envs: Sequence[ForkableMultiAgentEnv],
    engine: Engine,
    engine_thread: Executor,
    settings: RolloutSettings,
    on_progress: Callable[[int, int, int], None] = lambda questions, tokens, forks: None,
) -> list[SampledQuestion]:
    """Samples the questions with these numbers, as many at a time as there are `envs`; results in their order.

    Raises:
        Exception: the first error of an environment or of the engine, which ends all questions.
    """
    results: dict[int, SampledQuestion] = {}
    waiting = iter(numbers)

    async def work(env: ForkableMultiAgentEnv, loop: EngineLoop) -> None:
        async for sampled in _sample_each(waiting, env, loop, settings, engine.vocab_size):
            results[sampled.number] = sampled
            on_progress(1, sampled.stats.num_generated_tokens, sampled.stats.num_forks)

    async with EngineLoop(engine, engine_thread) as loop:
        try:
            async with asyncio.TaskGroup() as group:
                for env in envs[: len(numbers)]:
                    group.create_task(work(env, loop))
        except BaseExceptionGroup as errors:
            raise _first(errors) from errors
    return [results[number] for number in numbers]


async def _sample_each(
    waiting: Iterator[int], env: ForkableMultiAgentEnv, loop: EngineLoop, settings: RolloutSettings, vocab_size: int
):
    """Yields the questions of one environment; `waiting` is shared by all environments."""
    sampler = TreeSampler(env, loop, settings, vocab_size)
    for number in waiting:
        tree, counts = await sampler.sample(number)
        yield SampledQuestion(number, tree_to_episode(tree), question_stats(tree, counts))


def _first(errors: BaseExceptionGroup) -> BaseException:
    """The first error itself, out of the groups that task groups wrap around it."""
    error = errors.exceptions[0]
    return _first(error) if isinstance(error, BaseExceptionGroup) else error
